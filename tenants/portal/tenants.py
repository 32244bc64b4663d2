"""All tenants by slug, with what each took in the last day."""

from datetime import timedelta

from django.http import HttpRequest, HttpResponseBase
from django.utils import timezone

from console.accounts.selectors import Permission, can, require, visible_tenant_ids
from console.errors import NotFound
from console.web.htmx import render
from console.web.keyset import DEFAULT_LIMIT, cut
from console.web.tables import Column, number, pager
from console.web.views import page
from tenants.directory.selectors import TenantView, tenant_by_slug
from tenants.directory.selectors import tenants as listed_tenants
from tenants.ledger.selectors import spend_by_tenant

DAY = timedelta(days=1)
MAX_SLUG_CHARS = 63
COLUMNS = (
    Column("Tenant"),
    Column("Name"),
    Column("State"),
    number("Spend 24 h", "USD", "Settled in the last 24 hours"),
    number("Requests 24 h"),
    number("Failed 24 h", meaning="Requests that reached a replica and failed"),
    Column("Default class"),
    Column("Models"),
    Column("Time zone", meaning="Windows of its limits are cut in this zone"),
    Column("Since"),
)


@page("GET", query=("from", "after"))
def tenants(request: HttpRequest) -> HttpResponseBase:
    """Tenants by slug. `from` starts the list at a slug, so that one of many is found at once."""
    require(request.user, Permission.VIEW_ALL)
    start = request.GET.get("from", "").strip().lower()[:MAX_SLUG_CHARS]
    after = request.GET.get("after", "")[:MAX_SLUG_CHARS]
    rows = _listed(visible_tenant_ids(request.user), start, after)
    lines = cut(rows, DEFAULT_LIMIT, lambda line: line.slug)
    now = timezone.now()
    shown = frozenset(line.id for line in lines.rows)
    spent = spend_by_tenant(tenant_ids=shown, since=now - DAY, until=now)
    by_id = {int(one.subject): one.totals for one in spent}
    context = {
        "page": lines,
        "rows": [(line, by_id.get(line.id)) for line in lines.rows],
        "pager": pager(request, lines, "rows"),
        "columns": COLUMNS,
        "start": start,
        "may_manage": can(request.user, Permission.MANAGE_TENANTS),
    }
    return render(request, "tenants/tenants.html", "rows", context)


def _listed(visible: frozenset[int] | None, start: str, after: str) -> list[TenantView]:
    """One row more than a page, from `start` on, itself included, or behind `after`."""
    if after or not start:
        return listed_tenants(visible, after_slug=after, limit=DEFAULT_LIMIT + 1)
    try:
        named = tenant_by_slug(start)
    except NotFound:
        first = []
    else:
        first = [named] if visible is None or named.id in visible else []
    return first + listed_tenants(visible, after_slug=start, limit=DEFAULT_LIMIT + 1 - len(first))
