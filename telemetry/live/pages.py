"""The live page."""

import time
from urllib.parse import urlencode

from django.http import HttpRequest, HttpResponseBase

from console.errors import Forbidden
from console.web.htmx import render
from console.web.tables import Column as Head
from console.web.tables import number
from console.web.views import page
from telemetry.live import opening
from telemetry.live.opening import REPLICA_COLUMNS, SLICE_COLUMNS, TENANT_COLUMNS, table
from telemetry.live.rules import (
    CHANNEL_POOL,
    CHANNEL_SLICES,
    ROWS_MAX,
    Access,
    Query,
    View,
    parse_query,
)
from telemetry.live.selectors import Published, access_of, published
from telemetry.slices.rules import Point
from telemetry.slices.selectors import SliceFilter, recent_total, series
from tenants.directory.access import open_tenant

TENANTS_LISTED = 200  # choices of the filter
MINUTE_COLUMNS = (
    Head("Minute"),
    number("Samples", meaning="Requests with a first token"),
    number("p50", "ms"),
    number("p95", "ms"),
    number("p99", "ms", "Unknown below 30 samples"),
)


@page("GET", query=("tenant",))
def live(request: HttpRequest) -> HttpResponseBase:
    """Time to first token, KV occupancy and spend, moving; `?tenant=` narrows it to one tenant.

    A tenant's members see their own tenants and no pools.
    """
    user = request.user
    access = access_of(user)
    if access is None or access.sees_nothing:
        raise Forbidden("The live page needs a role, or the membership of a tenant.")
    slug = request.GET.get("tenant", "")
    if not slug and access.tenants is not None:
        slug = min(access.tenants.values())
    tenant_id = open_tenant(user, slug).id if slug else None
    found = published(by_pool=access.sees_pools)
    context = _context(found, access, slug, tenant_id)
    return render(request, "telemetry/live.html", "", context)


def _context(
    found: Published, access: Access, slug: str, tenant_id: int | None
) -> dict[str, object]:
    now_s = time.time()
    filters = {"tenant": slug} if slug else {}
    slices = _query(CHANNEL_SLICES, limit=str(ROWS_MAX), **filters)
    tenants = _query(CHANNEL_SLICES, group="tenant", limit=str(ROWS_MAX), **filters)
    total = tenants if slug else _query(CHANNEL_SLICES, group="total")
    pool = _query(CHANNEL_POOL, limit=str(ROWS_MAX))
    tenants_view = opening.view_or_none(found.tenants, tenants[1], access)
    total_state = found.tenants if slug else found.total
    total_view = opening.view_or_none(total_state, total[1], access)
    pool_view = opening.view_or_none(found.pool, pool[1], access) if access.sees_pools else None
    columns = (
        SLICE_COLUMNS
        if access.sees_pools
        else tuple(column for column in SLICE_COLUMNS if column.field != "pool")
    )
    points = _points(tenant_id, now_s)
    age_s = opening.age_s_of(found, now_s)
    tone, words = opening.state_words(age_s)
    old_s = age_s if tone == "stale" else None
    return {
        "tenant": slug,
        "tenant_choices": _choices(found, access),
        "sees_pools": access.sees_pools,
        "tone": tone,
        "state_words": words,
        "is_stale": tone == "stale",
        "slices": table(
            CHANNEL_SLICES,
            slices[0],
            columns,
            opening.view_or_none(found.slices, slices[1], access),
        ),
        "tenants": table(CHANNEL_SLICES, tenants[0], TENANT_COLUMNS, tenants_view),
        "replicas": table(CHANNEL_POOL, pool[0], REPLICA_COLUMNS, pool_view, old_s),
        "total_query": total[0],
        "headline": _headline(total_view),
        "fresh_replicas": len(pool_view.rows) - len(pool_view.ages)
        if pool_view and old_s is None
        else 0,
        "minute_columns": MINUTE_COLUMNS,
        "minutes": [point for point in reversed(points) if point.requests],
        "spend_since": opening.instant(tenants_view.facts["spend_since"] if tenants_view else None),
        "figures": opening.chart_figures(
            points, found.history if access.sees_pools else None, tenants_view, now_s, age_s
        ),
    }


def _query(channel: str, **parameters: str) -> tuple[str, Query]:
    """A query as the script sends it and as the rules know it."""
    text = urlencode(parameters)
    query = parse_query(channel, text)
    if query is None:
        raise ValueError(f"the page asks what no socket would answer: {channel}?{text}")
    return text, query


def _points(tenant_id: int | None, now_s: float) -> list[Point]:
    """Minutes of the charts' width, oldest first."""
    if tenant_id is None:
        return recent_total(opening.CHART_S // 60)
    wanted = SliceFilter(tenant_ids=frozenset({tenant_id}))
    return series(wanted, since_s=int(now_s) - opening.CHART_S, until_s=int(now_s))[1]


def _headline(view: View | None) -> dict[str, object]:
    """The row over all, or nothing when there is none."""
    if view is None or not view.rows:
        return {}
    return dict(zip(view.fields, view.rows[0], strict=True))


def _choices(found: Published, access: Access) -> list[str]:
    """Tenants that the filter offers: one's own, or those with figures."""
    if access.tenants is not None:
        return sorted(access.tenants.values())[:TENANTS_LISTED]
    rows = found.tenants.rows if found.tenants else []
    return sorted({row.tenant for row in rows})[:TENANTS_LISTED]
