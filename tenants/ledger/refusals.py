"""Refused requests of one tenant, from their shape rows: kept `DAYS_KEPT` days, text-free."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from django.db.models import Count, QuerySet
from django.utils import timezone

from console.web.keyset import MAX_LIMIT, Page, take
from routing.contracts.ids import day_of
from tenants.ledger.rules.shapes import first_day_kept
from tenants.models import Shape, Usage

MAX_GROUPS = 50  # limits of a tenant that refused in one period, the most first


@dataclass(frozen=True, slots=True)
class RefusalLine:
    """One refused request: what refused it (`code`, and `limit` of `scope` where one did).

    `retry_after_ms` is what the caller was told, None where no time was: waiting does not help, or
    nobody knows for how long. `model` is the name asked for where it could not be resolved.
    """

    request_id: str
    at: datetime
    key_id: int | None
    model: str
    work_class: str
    code: str
    http_status: int
    limit: str
    scope: str
    retry_after_ms: int | None
    input_tokens: int
    max_tokens: int | None


@dataclass(frozen=True, slots=True)
class RefusalCount:
    """How many requests one limit, or one reason, refused in a period."""

    code: str
    limit: str
    scope: str
    count: int


def refusals_page(
    *, tenant_id: int, after: str | None, limit: int, code: str = ""
) -> Page[RefusalLine]:
    """A tenant's refused requests, newest first: one query. Raises `InvalidInput` (cursor)."""
    rows = _refused(tenant_id)
    if code:
        rows = rows.filter(refused_code=code)
    page = take(rows, order=("-day", "-request_id"), after=after, limit=min(limit, MAX_LIMIT))
    return Page(tuple(_lines(page.rows)), page.next_after, page.limit)


def refusal(*, tenant_id: int, request_id: str) -> RefusalLine | None:
    """One refused request of the tenant; None when there is none. The id names its day."""
    try:
        spelled = str(UUID(request_id))
        day = day_of(spelled)
    except (ValueError, OverflowError):
        return None
    return next(_lines(_refused(tenant_id).filter(day=day, request_id=spelled)[:1]), None)


def tenant_of_request(*, tenant_ids: frozenset[int] | None, request_id: str) -> int | None:
    """Whose request it was: served or refused, of the given tenants (`None`: of any).

    None when there is none: two queries by the rows' own keys, for the id names its day.
    """
    try:
        spelled = str(UUID(request_id))
        day = day_of(spelled)
    except (ValueError, OverflowError):
        return None
    for kind in (Usage, Shape):
        rows = kind.objects.filter(day=day, request_id=spelled)
        if tenant_ids is not None:
            rows = rows.filter(tenant_id__in=tenant_ids)
        found = rows.values_list("tenant_id", flat=True).first()
        if found is not None:
            return found
    return None


def refusal_counts(*, tenant_id: int, length: timedelta) -> tuple[RefusalCount, ...]:
    """What refused how often in the last `length`, the most first, at most `MAX_GROUPS`."""
    since = timezone.now() - length
    found = (
        _refused(tenant_id)
        .filter(day__gte=since.date(), arrived_at__gte=since)
        .order_by()
        .values("refused_code", "refused_limit", "refused_scope")
        .annotate(count=Count("request_id"))
        .order_by("-count", "refused_code", "refused_limit")[:MAX_GROUPS]
    )
    return tuple(
        RefusalCount(
            row["refused_code"] or "",
            row["refused_limit"] or "",
            row["refused_scope"] or "",
            row["count"],
        )
        for row in found
    )


def _refused(tenant_id: int) -> QuerySet[Shape]:
    oldest = first_day_kept(int(timezone.now().timestamp() * 1000))
    return Shape.objects.filter(tenant_id=tenant_id, day__gte=oldest, refused_code__isnull=False)


def _lines(rows: Iterable[Shape]) -> Iterator[RefusalLine]:
    return (
        RefusalLine(
            request_id=str(row.request_id),
            at=row.arrived_at,
            key_id=row.key_id,
            model=row.model,
            work_class=row.work_class,
            code=row.refused_code or "",
            http_status=row.refused_status or 0,
            limit=row.refused_limit or "",
            scope=row.refused_scope or "",
            retry_after_ms=row.retry_after_ms,
            input_tokens=row.input_tokens,
            max_tokens=row.max_tokens,
        )
        for row in rows
    )
