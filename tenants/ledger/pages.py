"""Usage: rows of the ledger, and the same as CSV."""

from datetime import timedelta

from django.http import HttpRequest, HttpResponseBase
from django.urls import reverse

from console.accounts.selectors import Permission, require, visible_tenant_ids
from console.web.exports import csv_response
from console.web.htmx import render
from console.web.keyset import DEFAULT_LIMIT
from console.web.tables import Column, number, pager
from console.web.views import page
from routing.contracts.enums import RequestStatus
from tenants.directory.access import open_tenant
from tenants.directory.selectors import TenantView
from tenants.keys.selectors import KeyView
from tenants.keys.selectors import keys as listed_keys
from tenants.ledger.filters import (
    CSV_HEADER,
    UsageFilter,
    csv_batches,
    usage_filter,
)
from tenants.ledger.selectors import (
    UsageLine,
    usage_page,
)

OWN_USAGE_QUERY = ("after", "since", "until", "key", "model", "status")
USAGE_QUERY = ("tenant", *OWN_USAGE_QUERY)
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
