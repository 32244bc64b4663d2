"""A tenant's use over time: by minute, hour or day, divided by model or key."""

from dataclasses import dataclass

from django.http import HttpRequest, HttpResponseBase
from django.utils import timezone

from console.web.htmx import render
from console.web.tables import Column
from console.web.views import choice, page
from tenants.directory.access import open_tenant
from tenants.ledger.selectors import Totals, added, ledger_totals
from tenants.ledger.series import Step
from tenants.portal.chart import GROUPS, MEASURES, TOTAL_COLUMNS, Slots, labels_by, use_chart

RANGES = {
    "hour": Slots(Step.MINUTE, 60, "last 60 minutes, by minute"),
    "day": Slots(Step.HOUR, 24, "last 24 hours, by hour"),
    "month": Slots(Step.DAY, 30, "last 30 days, by day"),
}
BY = ("model", "key")


@dataclass(frozen=True, slots=True)
class Group:
    """One model or key: its label, sums, the address of its ledger rows, and its colour."""

    name: str
    label: str
    note: str
    totals: Totals
    css: str


@page("GET", query=("range", "by", "of"))
def own_spend(request: HttpRequest, slug: str) -> HttpResponseBase:
    """The chart, its table, and the sums by model or key; every figure from the same rollups."""
    tenant = open_tenant(request.user, slug)
    chosen_range = choice(request, "range", RANGES, "hour")
    by = choice(request, "by", BY, "model")
    measure = choice(request, "of", MEASURES, "spend")
    slots = RANGES[chosen_range]
    now = timezone.now()
    since = slots.starts(now, tenant.timezone)[0]
    seen = frozenset({tenant.id})
    groups = GROUPS[by][1](tenant_ids=seen, since=since, until=now)
    labels = labels_by(by, groups)
    chart = use_chart(
        tenant_ids=seen,
        slots=slots,
        now=now,
        zone=tenant.timezone,
        by=by,
        measure=measure,
        groups=groups,
        labels=labels,
    )
    context = {
        "tenant": tenant,
        "area": "own_",
        "chart": chart,
        "totals": added(groups) or ledger_totals(tenant_ids=seen, since=since, until=now),
        "groups": [
            Group(
                one.subject,
                *labels.get(one.subject, (one.label, "")),
                one.totals,
                chart.colour_of(one.subject),
            )
            for one in groups
        ],
        "group_columns": (Column(by.capitalize()), *TOTAL_COLUMNS),
        "range": chosen_range,
        "ranges": [(key, one.words) for key, one in RANGES.items()],
        "by": by,
        "bys": BY,
        "of": measure,
        "measures": [(key, name) for key, (name, _, _) in MEASURES.items()],
        "is_live": slots.step is Step.MINUTE,
    }
    return render(request, "tenants/own_spend.html", "content_body", context)
