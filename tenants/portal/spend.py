"""Who spends: sums of a period by tenant, model or key, and their trend."""

from dataclasses import dataclass

from django.http import HttpRequest, HttpResponseBase
from django.urls import reverse
from django.utils import timezone

from console.accounts.selectors import Permission, require, visible_tenant_ids
from console.web.htmx import render
from console.web.tables import Column, number
from console.web.views import choice, page
from tenants.directory.access import open_tenant
from tenants.keys.labels import labels_of
from tenants.ledger.filters import DEFAULT_RANGE, RANGES
from tenants.ledger.selectors import Spend, Totals, added, ledger_totals
from tenants.ledger.series import Step
from tenants.portal.chart import GROUPS, Slots, UseChart, labels_by, use_chart

TOKENS_PER_MTOK = 1_000_000
# The trend of each period; a rollup has no slot between a minute, an hour and a day.
TREND = {
    "15m": Slots(Step.MINUTE, 15, "last 15 min, by minute"),
    "1h": Slots(Step.MINUTE, 60, "last 60 min, by minute"),
    "6h": Slots(Step.HOUR, 7, "last 6 h, by hour"),
    "24h": Slots(Step.HOUR, 25, "last 24 h, by hour"),
    "7d": Slots(Step.DAY, 8, "last 7 d, by day"),
    "30d": Slots(Step.DAY, 31, "last 30 d, by day"),
}
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


@dataclass(frozen=True, slots=True)
class SpendRow:
    """A subject: its share of the whole (0..1), where a click leads, its colour in the chart."""

    spend: Spend
    label: str
    note: str
    share_ratio: float
    cached_ratio: float | None
    blended_nanousd: int | None
    url: str
    css: str


@page("GET", query=("tenant", "by", "range"))
def spend(request: HttpRequest) -> HttpResponseBase:
    """Who spends, and when: by tenant, model or key; `tenant` narrows it to one.

    The chart shows whole minutes, hours or days, so that its first bar may begin before the period.
    """
    require(request.user, Permission.VIEW_ALL)
    slug = request.GET.get("tenant", "")
    tenant = open_tenant(request.user, slug) if slug else None
    seen = frozenset({tenant.id}) if tenant else visible_tenant_ids(request.user)
    group = choice(request, "by", GROUPS, "model" if tenant else "tenant")
    name = choice(request, "range", RANGES, DEFAULT_RANGE)
    length = RANGES[name][0]
    until = timezone.now()
    sums_of = GROUPS[group][1]
    found = sums_of(tenant_ids=seen, since=until - length, until=until)
    totals = added(found) or ledger_totals(tenant_ids=seen, since=until - length, until=until)
    slots = TREND[name]
    first = slots.starts(until, "UTC")[0]
    drawn = sums_of(tenant_ids=seen, since=first, until=until)
    chart = use_chart(
        tenant_ids=seen,
        slots=slots,
        now=until,
        zone="UTC",
        by=group,
        measure="spend",
        groups=drawn,
        labels=labels_by(group, drawn),
    )
    context = {
        "rows": _rows(found, totals, group, name, chart),
        "chart": chart,
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


def _rows(
    found: tuple[Spend, ...], totals: Totals, group: str, chosen_range: str, chart: UseChart
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
                css=chart.colour_of(row.subject),
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
