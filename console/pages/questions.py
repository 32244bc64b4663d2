"""Two of the overview's four questions: why is P99 up, and what caused the bill.

The other two have pages of their own: tasks (`tenants.work`) and carbon (`telemetry.economics`).
"""

from datetime import datetime, timedelta

from django.http import HttpRequest, HttpResponseBase
from django.utils import timezone

from capacity.fleet.selectors import fleet_page
from console.accounts.selectors import Permission, require
from console.pages.bill_answer import bill_answer
from console.pages.verdicts import compared, verdict
from console.web.htmx import render
from console.web.keyset import MAX_LIMIT
from console.web.live_state import pool_states
from console.web.tables import Column, number
from console.web.views import choice, page
from telemetry.stats.fairness import jain_index
from tenants.directory.selectors import slugs_of
from tenants.keys.labels import labels_of
from tenants.ledger.bill import Mover, bill
from tenants.ledger.filters import RANGES
from tenants.ledger.slow import SlowReport

WINDOWS = ("15m", "1h")
BILL_RANGES = ("1h", "6h", "24h", "7d")
WAITING_SHOWN = 8  # replicas
_SLOW_COLUMNS = (
    Column("Subject"),
    number("Slow", "req", "Slower than the p99 of the window compared with"),
    number("Excess", "req", "Beyond one in 100: what would not be there had nothing changed"),
    number("TTFT p99 now", "ms"),
    number("before", "ms", "TTFT p99 of the window compared with"),
    number("Decode p99 now", "ms", "First token to end"),
    number("before", "ms", "Decode p99 of the window compared with"),
    number("Prefix hit now", "%"),
    number("before", "%", "Prefix hit of the window compared with"),
    number("Requests"),
)
_WAIT_COLUMNS = (
    Column("Replica"),
    number("Waiting", "req", "Not yet in a batch"),
    number("Running", "req"),
    number("Queue wait", "s", "Engine's own mean over its last period"),
    number("KV", "%"),
)
_BILL_COLUMNS = (
    Column("Subject"),
    number("Change", "USD"),
    number("Now", "USD"),
    number("Before", "USD"),
    number("Requests now"),
    number("before", "", "Requests in the period before"),
    number("Tokens", "x", "Tokens against the period before"),
)


@page("GET", query=("window",))
def why_p99(request: HttpRequest) -> HttpResponseBase:
    """TTFT p99 of a window against an hour before: slice, phase, prefix hits, replica."""
    require(request.user, Permission.VIEW_ALL)
    name = choice(request, "window", WINDOWS, "15m")
    length, words = RANGES[name]
    report, against = compared(until=timezone.now(), length=length, words=words)
    names = _names(report)
    context = {
        "report": report,
        "against": against,
        "answer": verdict(report, names, against),
        "groups": [
            (
                dimension,
                [
                    {"one": one, "label": names.get((dimension, one.subject), one.subject)}
                    for one in suspects
                ],
            )
            for dimension, suspects in report.suspects.items()
            if suspects
        ],
        "columns": _SLOW_COLUMNS,
        "waiting": _waiting(),
        "wait_columns": _WAIT_COLUMNS,
        "window": name,
        "window_words": RANGES[name][1],
        "windows": [(key, RANGES[key][1]) for key in WINDOWS],
    }
    return render(request, "console/why_p99.html", "content", context)


@page("GET", query=("range",))
def why_bill(request: HttpRequest) -> HttpResponseBase:
    """Spend against the period before: by tenant, model, key and class, largest change first."""
    require(request.user, Permission.VIEW_ALL)
    name = choice(request, "range", BILL_RANGES, "24h")
    length = RANGES[name][0]
    until = _minute(timezone.now())
    found = bill(until=until, length=length)
    labels = _bill_labels(found.movers["tenant"], found.movers["key"])
    shares = [one.now.tokens for one in found.movers["tenant"]]
    context = {
        "bill": found,
        "change_ratio": _change(found.now.spend_nanousd, found.before.spend_nanousd),
        "groups": [
            (
                dimension,
                [
                    {"one": one, "label": labels.get((dimension, one.subject), one.subject)}
                    for one in movers
                ],
            )
            for dimension, movers in found.movers.items()
            if movers
        ],
        "answer": bill_answer(found, labels, RANGES[name][1]),
        "jain": jain_index(shares),
        "columns": _BILL_COLUMNS,
        "since": until - length,
        "until": until,
        "range": name,
        "range_words": RANGES[name][1],
        "ranges": [(key, RANGES[key][1]) for key in BILL_RANGES],
    }
    return render(request, "console/why_bill.html", "content", context)


def _minute(at: datetime) -> datetime:
    """End of the running minute. Sums from rollups are of whole minutes: periods that begin and
    end at one do not overlap.
    """
    return at.replace(second=0, microsecond=0) + timedelta(minutes=1)


def _change(now: int, before: int) -> float | None:
    return (now - before) / before if before else None


def _names(report: SlowReport) -> dict[tuple[str, str], str]:
    ids = {int(one.subject) for one in report.suspects["tenant"]}
    return {("tenant", str(number)): slug for number, slug in slugs_of(ids).items()}


def _bill_labels(tenants: tuple[Mover, ...], keys: tuple[Mover, ...]) -> dict[tuple[str, str], str]:
    slugs = slugs_of(int(one.subject) for one in tenants)
    known = labels_of(int(one.subject) for one in keys)
    labels = {("tenant", str(number)): slug for number, slug in slugs.items()}
    for number_, (prefix, name, slug) in known.items():
        labels["key", str(number_)] = f"{slug}: {name} ({prefix}…)"
    return labels


def _waiting() -> list[dict[str, object]] | None:
    """Replicas with the longest engine queues now; None when the store is away."""
    pools = fleet_page(limit=MAX_LIMIT).rows
    states = pool_states(pool.name for pool in pools)
    if states is None:
        return None
    found = [
        {"state": state, "is_stale": seen.is_stale}
        for seen in states.values()
        for state in seen.state.endpoints
    ]
    found.sort(key=lambda row: -(getattr(row["state"], "waiting", None) or 0))
    return found[:WAITING_SHOWN]
