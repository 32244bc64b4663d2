"""The first page: is anyone hurting, since when, what to do, and what changed?"""

from collections.abc import Iterable
from datetime import datetime, timedelta

from django.http import HttpRequest, HttpResponseBase
from django.shortcuts import redirect
from django.utils import timezone

from capacity.fleet.grid import sums_of
from capacity.fleet.selectors import fleet_page
from capacity.playbooks.selectors import active_runs
from capacity.rollouts.selectors import off_course
from console.accounts.selectors import Permission, can, visible_tenant_ids
from console.audit.selectors import AuditFilter, trail
from console.errors import Forbidden
from console.pages import attention
from console.pages.changes import Change, changes_of
from console.pages.conditions import report, strips_of
from console.pages.figures import REASONS_SHOWN, Refusals, headline
from console.pages.objects import described
from console.web import live_state
from console.web.htmx import render
from console.web.keyset import MAX_LIMIT
from console.web.views import page
from routing.overrides.selectors import overrides
from telemetry.economics.rules import PoolCarbon
from telemetry.economics.selectors import period
from telemetry.slos.selectors import objectives, states
from tenants.directory.selectors import slugs_of

CHANGES_SHOWN = 10
CHANGES_SINCE = timedelta(hours=24)
TASKS_SINCE = timedelta(hours=24)


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
    now = timezone.now()
    pools = fleet_page(limit=MAX_LIMIT)
    sums = [sums_of(pool) for pool in pools.rows]
    seen = live_state.pool_states(pool.name for pool in pools.rows)
    if seen is not None:
        for pool in pools.rows:
            strips += attention.of_pool(pool.name, seen.get(pool.name), pool.desired_replicas)
    runs = active_runs(attention.MAX_SHOWN)
    strips += attention.of_runs(runs)
    in_force = overrides(only_active=True, limit=attention.MAX_SHOWN).rows
    strips += attention.of_overrides(in_force, runs)
    strips += attention.of_rollouts(off_course(now, attention.MAX_SHOWN))
    promised = objectives()
    strips += attention.of_objectives(states(promised, now=now))
    found = period(now - TASKS_SINCE, now)
    figures = headline(sums, promised, attention.queue_ages(seen or {}))
    strips = attention.worst_first([*strips, *attention.of_classes(figures.classes)])
    may_see_changes = can(request.user, Permission.VIEW_AUDIT)
    context = {
        "strips": strips,
        "worst": strips[0] if strips else None,
        "headline": figures,
        "reasons": _reasons(figures.refusals),
        "has_objectives": bool(promised),
        "economics": found.economics,
        "outcomes": found.outcomes,
        "missing": _missing(found.economics.pools),
        "pools": sums,
        "more_pools": pools.next_after is not None,
        "changes": _changes(now - CHANGES_SINCE) if may_see_changes else [],
        "may_see_changes": may_see_changes,
    }
    return render(request, "console/overview.html", "content", context)


def _changes(since: datetime) -> list[Change]:
    lines = [line for line in trail(AuditFilter(), limit=CHANGES_SHOWN) if line.at >= since]
    return changes_of(described(lines))


def _reasons(refusals: Refusals | None) -> str:
    if refusals is None:
        return "unknown: the store is away"
    if not refusals.reasons:
        return "none in the last 5 min"
    shown = [f"{name} {rate:.1f}" for name, rate in refusals.reasons[:REASONS_SHOWN]]
    return ", ".join(shown).replace("_", " ")


def _missing(pools: Iterable[PoolCarbon]) -> str:
    """The first input that keeps grams per task unknown."""
    return next((one.missing for one in pools if one.task_gpu_s and one.missing), "")
