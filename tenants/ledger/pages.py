"""Spend and usage: sums from rollups, rows from the ledger, and the rows as CSV."""

from dataclasses import dataclass
from datetime import timedelta

from django.http import HttpRequest, HttpResponseBase
from django.urls import reverse
from django.utils import timezone

from console.accounts.selectors import Permission, require, visible_tenant_ids
from console.web.exports import csv_response
from console.web.htmx import render
from console.web.keyset import DEFAULT_LIMIT
from console.web.tables import Column, number, pager
from console.web.views import choice, page
from routing.contracts.enums import RequestStatus
from tenants.directory.access import open_tenant
from tenants.directory.selectors import TenantView
from tenants.keys.labels import labels_of
from tenants.keys.selectors import KeyView
from tenants.keys.selectors import keys as listed_keys
from tenants.ledger.filters import (
    CSV_HEADER,
    DEFAULT_RANGE,
    RANGES,
    UsageFilter,
    csv_batches,
    usage_filter,
)
from tenants.ledger.selectors import (
    Spend,
    Totals,
    UsageLine,
    ledger_totals,
    spend_by_key,
    spend_by_model,
    spend_by_tenant,
    usage_page,
)

OWN_USAGE_QUERY = ("after", "since", "until", "key", "model", "status")
USAGE_QUERY = ("tenant", *OWN_USAGE_QUERY)
TOKENS_PER_MTOK = 1_000_000
GROUPS = {"tenant": spend_by_tenant, "model": spend_by_model, "key": spend_by_key}
_SPEND_COLUMNS = (
    number("Spend", "USD", "Exact sum of charged requests and adjustments"),
    Column("Share"),
    number("Requests"),
    number("Failed", meaning="Requests that reached a replica and failed"),
    number("Input", "tok"),
    number("Cached", "%", "Share of input tokens that were not recomputed"),
    number("Output", "tok"),
    number("Blended", "USD/M tok", "Spend divided by input and output tokens"),
)
_USAGE_COLUMNS = (
    Column("Status"),
    Column("Key"),
    Column("Model"),
    number("Input", "tok"),
    number("Cached", "tok"),
    number("Output", "tok"),
    number("Spend", "USD", "With adjustments"),
    number("TTFT", "ms", "From accepting the request to its first output token"),
    number("Took", "ms", "From accepting the request to its end"),
    Column("Counted by", meaning="Where the token counts come from"),
    Column("Policy"),
)
MAX_KEYS_OFFERED = 200  # in the filter's list; another key is reached from its row


def _started(zone: str) -> Column:
    return Column("Started", zone, "When the gateway accepted the request; rows are in this order")


@dataclass(frozen=True, slots=True)
class SpendRow:
    """A subject with its share of the whole (0..1) and where a click leads."""

    spend: Spend
    label: str
    note: str
    share_ratio: float
    cached_ratio: float | None
    blended_nanousd: int | None
    url: str


@page("GET", query=("tenant", "by", "range"))
def spend(request: HttpRequest) -> HttpResponseBase:
    """Who spends: by tenant, model or key, over a chosen time; `tenant` narrows it to one."""
    require(request.user, Permission.VIEW_ALL)
    slug = request.GET.get("tenant", "")
    tenant = open_tenant(request.user, slug) if slug else None
    seen = frozenset({tenant.id}) if tenant else visible_tenant_ids(request.user)
    group = choice(request, "by", GROUPS, "model" if tenant else "tenant")
    name = choice(request, "range", RANGES, DEFAULT_RANGE)
    length = RANGES[name][0]
    until = timezone.now()
    totals = ledger_totals(tenant_ids=seen, since=until - length, until=until)
    found = GROUPS[group](tenant_ids=seen, since=until - length, until=until)
    context = {
        "rows": _rows(found, totals, group, name),
        "totals": totals,
        "cached_ratio": _cached(totals),
        "blended_nanousd": _blended(totals),
        "columns": (Column(group.capitalize()), *_SPEND_COLUMNS),
        "group": group,
        "groups": tuple(GROUPS),
        "range": name,
        "range_words": RANGES[name][1],
        "ranges": [(key, words) for key, (_, words) in RANGES.items()],
        "tenant": tenant,
    }
    return render(request, "tenants/spend.html", "content", context)


@page("GET", query=USAGE_QUERY)
def usage(request: HttpRequest) -> HttpResponseBase:
    """Ledger rows of all tenants, newest first; the filter is in the address."""
    require(request.user, Permission.VIEW_ALL)
    slug = request.GET.get("tenant", "")
    tenant = open_tenant(request.user, slug) if slug else None
    seen = frozenset({tenant.id}) if tenant else visible_tenant_ids(request.user)
    context = {
        **_listed(request, seen, usage_filter(request.GET)),
        "columns": (_started("UTC"), Column("Tenant"), *_USAGE_COLUMNS, Column("Replica")),
        "keys": _keys_offered(tenant),
        "zone": "UTC",
        "tenant_slug": slug,
        "chosen_tenant": tenant,
        "csv_url": reverse("usage_csv"),
        "list_url": reverse("usage"),
        "area": "",
    }
    return render(request, "tenants/usage.html", "rows", context)


@page("GET", query=USAGE_QUERY)
def usage_csv(request: HttpRequest) -> HttpResponseBase:
    """The filtered rows as CSV, at most `MAX_EXPORTED`, with totals."""
    require(request.user, Permission.VIEW_ALL)
    slug = request.GET.get("tenant", "")
    tenant = open_tenant(request.user, slug) if slug else None
    seen = frozenset({tenant.id}) if tenant else visible_tenant_ids(request.user)
    return csv_response(
        "headrace-usage.csv", CSV_HEADER, csv_batches(seen, usage_filter(request.GET))
    )


@page("GET", query=OWN_USAGE_QUERY)
def own_usage(request: HttpRequest, slug: str) -> HttpResponseBase:
    """Ledger rows of one tenant for its own people: no pools, times in its zone."""
    tenant = open_tenant(request.user, slug)
    context = {
        **_listed(request, frozenset({tenant.id}), usage_filter(request.GET)),
        "columns": (_started(tenant.timezone), *_USAGE_COLUMNS),
        "keys": _keys_offered(tenant),
        "zone": tenant.timezone,
        "tenant": tenant,
        "csv_url": reverse("own_usage_csv", kwargs={"slug": slug}),
        "list_url": reverse("own_usage", kwargs={"slug": slug}),
        "area": "own_",
    }
    return render(request, "tenants/usage.html", "rows", context)


@page("GET", query=OWN_USAGE_QUERY)
def own_usage_csv(request: HttpRequest, slug: str) -> HttpResponseBase:
    """One tenant's filtered rows as CSV."""
    tenant = open_tenant(request.user, slug)
    rows = csv_batches(frozenset({tenant.id}), usage_filter(request.GET))
    return csv_response("headrace-usage.csv", CSV_HEADER, rows)


def _keys_offered(tenant: TenantView | None) -> list[KeyView]:
    """Keys to choose from once a tenant is known, newest first."""
    return listed_keys(tenant.id, limit=MAX_KEYS_OFFERED) if tenant else []


def _listed(
    request: HttpRequest, seen: frozenset[int] | None, chosen: UsageFilter
) -> dict[str, object]:
    lines = usage_page(
        tenant_ids=seen,
        after=request.GET.get("after"),
        limit=DEFAULT_LIMIT,
        **chosen.arguments(),
    )
    return {
        "page": lines,
        "pager": pager(request, lines, "rows"),
        "rows": [{"line": line, **_times(line)} for line in lines.rows],
        "filter": chosen,
        "statuses": [status.value for status in RequestStatus],
        "query": request.GET.urlencode(),
    }


def _times(line: UsageLine) -> dict[str, int | None]:
    millisecond = timedelta(milliseconds=1)
    first = line.first_token_at
    return {
        "ttft_ms": None if first is None else round((first - line.started_at) / millisecond),
        "took_ms": round((line.ended_at - line.started_at) / millisecond),
    }


def _rows(
    found: tuple[Spend, ...], totals: Totals, group: str, chosen_range: str
) -> list[SpendRow]:
    labels = labels_of(int(row.subject) for row in found) if group == "key" else {}
    rows = []
    for row in found:
        prefix, name, slug = labels.get(int(row.subject), ("", "", "")) if labels else ("", "", "")
        rows.append(
            SpendRow(
                spend=row,
                label=f"{prefix}…" if prefix else row.label,
                note=f"{slug}: {name}" if prefix else "",
                share_ratio=row.totals.spend_nanousd / (totals.spend_nanousd or 1),
                cached_ratio=_cached(row.totals),
                blended_nanousd=_blended(row.totals),
                url=_drill(group, row, slug, chosen_range),
            )
        )
    return rows


def _drill(group: str, row: Spend, slug: str, chosen_range: str) -> str:
    if group == "tenant":
        return f"?tenant={row.label}&by=model&range={chosen_range}"
    if group == "key" and slug:
        return f"{reverse('usage')}?tenant={slug}&key={row.subject}"
    return ""


def _cached(totals: Totals) -> float | None:
    return totals.cached_tokens / totals.input_tokens if totals.input_tokens else None


def _blended(totals: Totals) -> int | None:
    tokens = totals.input_tokens + totals.output_tokens
    return totals.spend_nanousd * TOKENS_PER_MTOK // tokens if tokens else None
