"""One tenant at a glance: what stops it first, its keys, its last requests.

The same page for operators (`/tenants/{slug}/`) and, without pools, for its own people
(`/t/{slug}/`).
"""

from datetime import timedelta

from django.http import HttpRequest, HttpResponseBase
from django.urls import reverse
from django.utils import timezone

from console.accounts.selectors import Permission, can
from console.web.htmx import render
from console.web.views import page
from tenants.directory.access import open_tenant
from tenants.keys.selectors import keys as listed_keys
from tenants.ledger.refusals import refusal_counts
from tenants.ledger.selectors import ledger_totals, usage_page
from tenants.portal.day import start_of_day
from tenants.quotas.selectors import positions
from tenants.quotas.words import first_to_stop, rows_of

DAY = timedelta(days=1)
LAST_ROWS = 10
KEYS_SHOWN = 200  # named beside their limits; the keys page lists all


@page("GET")
def tenant(request: HttpRequest, slug: str, area: str) -> HttpResponseBase:
    """The page; htmx asks for the limits every few seconds."""
    found = open_tenant(request.user, slug)
    now = timezone.now()
    keys = listed_keys(found.id, limit=KEYS_SHOWN)
    rows = rows_of(positions(found.id), {key.id: f"{key.prefix}…" for key in keys}, now)
    seen = frozenset({found.id})
    usage_url = (
        reverse("own_usage", kwargs={"slug": slug})
        if area
        else f"{reverse('usage')}?tenant={found.slug}"
    )
    context = {
        "tenant": found,
        "area": area,
        "limits": rows,
        "is_known": all(row.position.is_known for row in rows),
        "first": first_to_stop(rows, now) if rows else "",
        "today": ledger_totals(tenant_ids=seen, since=start_of_day(now, found.timezone), until=now),
        "live_keys": sum(key.revoked_at is None for key in keys),
        "last": usage_page(tenant_ids=seen, after=None, limit=LAST_ROWS).rows,
        "usage_url": usage_url,
        "refused": sum(one.count for one in refusal_counts(tenant_id=found.id, length=DAY)),
        "may_limit": can(request.user, Permission.TENANT_MANAGE_LIMITS, found.id),
        "may_manage": can(request.user, Permission.MANAGE_TENANTS),
    }
    return render(request, "tenants/tenant.html", "limits", context)
