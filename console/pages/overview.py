"""The first page: is anyone hurting, since when, what to do, and what changed?"""

from collections.abc import Iterable
from datetime import datetime, timedelta

from django.http import HttpRequest, HttpResponseBase
from django.shortcuts import redirect
from django.utils import timezone

from console.accounts.selectors import Permission, can, visible_tenant_ids
from console.audit.selectors import AuditFilter, trail
from console.errors import Forbidden
from console.pages.changes import Change, changes_of
from console.pages.figures import REASONS_SHOWN, Refusals
from console.pages.standing import standing
from console.trail.objects import described
from console.web.htmx import render
from console.web.views import page
from telemetry.economics.rules import PoolCarbon
from tenants.directory.selectors import slugs_of

CHANGES_SHOWN = 10
CHANGES_SINCE = timedelta(hours=24)


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
    now = timezone.now()
    found = standing(now)
    may_see_changes = can(request.user, Permission.VIEW_AUDIT)
    context = {
        "strips": found.strips,
        "worst": found.strips[0] if found.strips else None,
        "headline": found.headline,
        "reasons": _reasons(found.headline.refusals),
        "has_objectives": found.has_objectives,
        "economics": found.economics,
        "outcomes": found.outcomes,
        "missing": _missing(found.economics.pools),
        "pools": found.pools,
        "more_pools": found.has_more_pools,
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
