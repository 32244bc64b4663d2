"""Why calls were refused: the recent ones of a tenant, and one looked up by its request id."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID

from django.http import HttpRequest, HttpResponseBase
from django.shortcuts import redirect
from django.urls import reverse

from console.accounts.selectors import Permission, can
from console.errors import InvalidInput
from console.web.htmx import render
from console.web.keyset import DEFAULT_LIMIT
from console.web.tables import Column, number, pager
from console.web.views import page
from routing.decision.types import Reason
from tenants.directory.access import open_tenant
from tenants.keys.labels import labels_of
from tenants.ledger.refusals import (
    RefusalLine,
    refusal_counts,
    refusals_page,
    tenant_of_request,
)
from tenants.portal.rules import Explanation, explain
from tenants.quotas.selectors import LimitView
from tenants.requests.selectors import askable_limits

LENGTH = timedelta(hours=24)  # of the counts above the list
CODES = tuple(reason.value for reason in Reason)


def _columns(zone: str) -> tuple[Column, ...]:
    return (
        Column("When", zone),
        Column("Refused with"),
        Column("Limit"),
        Column("Key"),
        Column("Model"),
        number("Asked", "tok in / max out", "Estimated input, and max_tokens where it was sent"),
        Column("Why, and what to do"),
    )


@dataclass(frozen=True, slots=True)
class RefusalRow:
    """A refusal in words, and where to ask for more (empty where that is not the way)."""

    line: RefusalLine
    said: Explanation
    key: str
    key_name: str
    ask_url: str


@page("GET", query=("after", "code", "id"))
def refusals(request: HttpRequest, slug: str, area: str) -> HttpResponseBase:
    """Refused calls, newest first; `id` leads to the page of a call, `code` filters."""
    tenant = open_tenant(request.user, slug)
    code, wanted = request.GET.get("code", ""), request.GET.get("id", "").strip()
    if code and code not in CODES:
        raise InvalidInput(
            f"code: there is no {code[:40]!r}.", field="code", hint=f"One of: {', '.join(CODES)}."
        )
    if wanted and _has(tenant.id, wanted):
        return redirect(_request_url(slug, str(UUID(wanted)), area))
    may_ask = bool(area) and can(request.user, Permission.TENANT_MANAGE_LIMITS, tenant.id)
    limits = askable_limits(tenant.id) if may_ask else []
    lines = refusals_page(
        tenant_id=tenant.id, after=request.GET.get("after"), limit=DEFAULT_LIMIT, code=code
    )
    context = {
        "tenant": tenant,
        "area": area,
        "columns": _columns(tenant.timezone),
        "page": lines,
        "pager": pager(request, lines, "rows"),
        "rows": refusal_rows(lines.rows, slug, limits),
        "counts": refusal_counts(tenant_id=tenant.id, length=LENGTH),
        "code": code,
        "codes": CODES,
        "wanted": wanted,
        "list_url": reverse(f"{area}refusals", kwargs={"slug": slug}),
    }
    return render(request, "tenants/refusals.html", "rows", context)


def _request_url(slug: str, request_id: str, area: str) -> str:
    if area:
        return reverse("own_request", kwargs={"slug": slug, "request_id": request_id})
    return reverse("request", kwargs={"request_id": request_id})


def _has(tenant_id: int, wanted: str) -> bool:
    found = tenant_of_request(tenant_ids=frozenset({tenant_id}), request_id=wanted)
    return found is not None


def refusal_rows(
    lines: Sequence[RefusalLine], slug: str, limits: Sequence[LimitView]
) -> list[RefusalRow]:
    """The refusals in words; `limits` are those that the reader may ask more of."""
    labels = labels_of(line.key_id for line in lines if line.key_id)
    made = []
    for line in lines:
        prefix, name, owner = labels.get(line.key_id or 0, ("", "", ""))
        is_own = owner == slug  # a row names a key of its own tenant; anything else is not shown
        made.append(
            RefusalRow(
                line,
                explain(
                    code=line.code,
                    limit=line.limit,
                    scope=line.scope,
                    retry_after_ms=line.retry_after_ms,
                ),
                f"{prefix}…" if is_own else "",
                name if is_own else "",
                _ask_url(line, slug, limits),
            )
        )
    return made


def _ask_url(line: RefusalLine, slug: str, limits: Sequence[LimitView]) -> str:
    """The form that asks for more of the limit that refused; empty if it is not there to raise."""
    for one in limits:
        is_it = (one.name, one.scope.value) == (line.limit, line.scope)
        if is_it and one.model in (None, line.model) and one.work_class in ("", line.work_class):
            return f"{reverse('ask_for_more', kwargs={'slug': slug})}?limit={one.id}"
    return ""
