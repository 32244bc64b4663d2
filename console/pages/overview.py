"""The first page: is anyone hurting, and what changed?"""

from dataclasses import dataclass

from django.http import HttpRequest, HttpResponseBase
from django.shortcuts import redirect

from capacity.fleet.grid import PoolSums, is_fresh, sums_of
from capacity.fleet.selectors import fleet_page
from console.accounts.selectors import Permission, can, visible_tenant_ids
from console.audit.selectors import AuditFilter, trail
from console.errors import Forbidden
from console.pages import attention
from console.pages.conditions import report, strips_of
from console.pages.objects import Described, described
from console.web import live_state
from console.web.htmx import render
from console.web.keyset import MAX_LIMIT
from console.web.views import page
from telemetry.live.selectors import published
from telemetry.slices.selectors import recent_total
from tenants.directory.selectors import slugs_of

HISTORY_MINUTES = 59  # and the running one
CHANGES_SHOWN = 8
MINUTE_S = 60


@dataclass(frozen=True, slots=True)
class Headline:
    """The figures of the first row; None is unknown. Lists hold one value a minute."""

    age_s: float | None
    window_s: int
    requests_per_s: float | None
    requests: list[float | None]
    ttft_p95_ms: float | None
    ttft: list[float | None]
    output_per_s: float | None
    output: list[float | None]
    refused: int | None
    failed: int | None
    refusals: list[float | None]
    spend_hour_nanousd: int | None
    spend: list[float | None]
    kv_max_ratio: float | None

    @property
    def is_stale(self) -> bool:
        """Whether the collector stopped publishing."""
        return self.age_s is None or self.age_s > live_state.STALE_AFTER_S


@page("GET")
def overview(request: HttpRequest) -> HttpResponseBase:
    """The page for operators; a tenant's member is sent to the own tenant."""
    if not can(request.user, Permission.VIEW_ALL):
        slugs = sorted(slugs_of(visible_tenant_ids(request.user) or ()).values())
        if slugs:
            return redirect("own_tenant", slug=slugs[0])
        raise Forbidden(
            "You are signed in, but nobody has given you a role yet.",
            hint="Ask an admin for a console role, or a tenant's admin for membership.",
        )
    strips = strips_of(report())  # first: what it waits for, nothing below waits for again
    pools = fleet_page(limit=MAX_LIMIT)
    sums = [sums_of(pool) for pool in pools.rows]
    states = live_state.pool_states(pool.name for pool in pools.rows)
    if states is not None:
        for pool in pools.rows:
            strips += attention.of_pool(pool.name, states.get(pool.name), pool.desired_replicas)
    may_see_changes = can(request.user, Permission.VIEW_AUDIT)
    context = {
        "strips": attention.worst_first(strips),
        "headline": headline(sums),
        "pools": sums,
        "more_pools": pools.next_after is not None,
        "changes": _changes() if may_see_changes else [],
        "may_see_changes": may_see_changes,
    }
    return render(request, "console/overview.html", "content", context)


def _changes() -> list[Described]:
    return described(trail(AuditFilter(), limit=CHANGES_SHOWN))


def headline(sums: list[PoolSums]) -> Headline:
    """Live figures of the last minute with their last hour, two round trips to the store."""
    live = published(by_pool=True).total
    total = live.rows[0] if live and live.rows else None
    points = recent_total(HISTORY_MINUTES)
    whole = points[:-1]  # the running minute would always look like a fall
    ratios = [
        replica.kv_usage_ratio
        for row in sums
        for replica in row.pool.replicas
        if replica.kv_usage_ratio is not None and is_fresh(replica)
    ]
    window_s = live.window_s if live else MINUTE_S
    return Headline(
        age_s=live_state.age_of_ms(live.at_ms) if live else None,
        window_s=window_s,
        requests_per_s=total.requests / window_s if total else None,
        requests=[point.requests / MINUTE_S for point in whole],
        ttft_p95_ms=_ms(total.ttft_p95_s) if total else None,
        ttft=[_ms(point.ttft_p95_s) for point in whole],
        output_per_s=total.output_tokens / window_s if total else None,
        output=[point.output_tokens / MINUTE_S for point in whole],
        refused=total.refused if total else None,
        failed=total.failed if total else None,
        refusals=[float(point.refused) for point in whole],
        spend_hour_nanousd=sum(point.spend_nanousd for point in points) if points else None,
        spend=[float(point.spend_nanousd) for point in whole],
        kv_max_ratio=max(ratios, default=None),
    )


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1000
