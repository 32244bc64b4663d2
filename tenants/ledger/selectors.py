"""Reads of the ledger: lines by key, sums from rollups. Every read names whose rows it may see.

`tenant_ids` None means all tenants (operators); an empty set sees nothing.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import date, datetime, timedelta
from typing import Any, Self, TypeVar
from uuid import UUID

from django.db.models import F, Model, Q, QuerySet, Sum
from django.utils import timezone

from console.web.keyset import MAX_LIMIT, Page, take
from routing.contracts.enums import SettleKind
from routing.contracts.ids import day_of
from tenants.ledger.rules.periods import cover
from tenants.models import Usage, UsageAdjustment, UsageRollup

DEFAULT_DAYS = 31  # a list without a first day looks back so far: bounds what a rare filter scans
MAX_GROUPS = 500  # subjects in one answer, dearest first

M = TypeVar("M", bound=Model)


@dataclass(frozen=True, slots=True)
class UsageLine:
    """One request as the ledger holds it. Money in nano-dollars; `adjusted_nanousd` comes on top.

    `kind` tells how it ended: settled, void, swept or recovered (`SettleKind`).
    """

    request_id: str
    day: date
    kind: SettleKind
    tenant_id: int
    tenant: str
    key_id: int
    key: str
    key_prefix: str
    project_id: int
    project: str
    model_asked: str
    model: str
    pool: str
    replica: str
    region: str
    work_class: str
    status: str
    usage_source: str
    is_suspicious: bool
    is_stream: bool
    http_status: int
    error_code: str
    started_at: datetime
    first_token_at: datetime | None
    ended_at: datetime
    input_tokens: int
    cached_tokens: int
    output_tokens: int
    reasoning_tokens: int
    cache_write_tokens: int | None
    images: int | None
    spend_nanousd: int
    held_input_tokens: int
    held_output_tokens: int
    held_nanousd: int
    attempts: int
    policy: str
    price_version: int
    gateway: str
    upstream_request_id: str
    task_id: str
    task_kind: str
    step: str
    session: str
    parent_id: str
    operation: str
    hops_us: dict[str, int]
    adjusted_nanousd: int = 0

    @property
    def is_above_hold(self) -> bool:
        """More was used than was reserved; it is charged all the same."""
        return (
            self.input_tokens > self.held_input_tokens
            or self.output_tokens > self.held_output_tokens
            or self.spend_nanousd > self.held_nanousd
        )

    @property
    def net_nanousd(self) -> int:
        """What the request costs with all its adjustments."""
        return self.spend_nanousd + self.adjusted_nanousd


@dataclass(frozen=True, slots=True)
class AdjustmentLine:
    """A correction of one request; amounts may be negative."""

    id: int
    request_id: str
    day: date
    tenant_id: int
    tenant: str
    reason: str
    note: str
    requests: int
    input_tokens: int
    output_tokens: int
    spend_nanousd: int
    created_at: datetime


@dataclass(frozen=True, slots=True)
class Totals:
    """Sums of a period or a task, adjustments included; void reservations are no requests."""

    requests: int = 0
    failed: int = 0
    cancelled: int = 0
    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    spend_nanousd: int = 0

    @classmethod
    def of(cls, row: Mapping[str, Any], prefix: str = "") -> Self:
        """From a database's row of sums, in which the sum of nothing is None."""
        return cls(**{name: int(row[f"{prefix}{name}"] or 0) for name in cls.__slots__})


@dataclass(frozen=True, slots=True)
class Spend:
    """A subject's share of a period: a tenant's or key's id, or a model's name."""

    subject: str
    label: str
    totals: Totals


def usage_page(  # noqa: PLR0913 - the filters of one list, all by name
    *,
    tenant_ids: frozenset[int] | None,
    after: str | None,
    limit: int,
    since: date | None = None,
    until: date | None = None,
    key_id: int | None = None,
    project_id: int | None = None,
    model: str = "",
    status: str = "",
    with_void: bool = False,
) -> Page[UsageLine]:
    """Lines, newest first, of the days `since`..`until` (UTC days of the request ids, both in).

    Without `since` the last `DEFAULT_DAYS`. At most `MAX_LIMIT` lines; two queries at any length.
    Raises `InvalidInput` for a cursor of another list.
    """
    rows = of_tenants(Usage.objects.all(), tenant_ids)
    rows = rows.filter(day__gte=since or timezone.now().date() - timedelta(days=DEFAULT_DAYS))
    if until is not None:
        rows = rows.filter(day__lte=until)
    if key_id is not None:
        rows = rows.filter(key_id=key_id)
    if project_id is not None:
        rows = rows.filter(project_id=project_id)
    if model:
        rows = rows.filter(model=model)
    if status:
        rows = rows.filter(status=status)
    if not with_void:
        rows = rows.exclude(kind=SettleKind.VOID.value)
    page = take(
        rows.select_related("tenant", "key", "project"),
        order=("-day", "-request_id"),
        after=after,
        limit=min(limit, MAX_LIMIT),
    )
    return Page(_with_adjustments(page.rows), page.next_after, page.limit)


def usage_line(*, tenant_ids: frozenset[int] | None, request_id: str) -> UsageLine | None:
    """One request; None when there is none that the caller may see. The id names its day."""
    try:
        spelled = str(UUID(request_id))
        day = day_of(spelled)
    except (ValueError, OverflowError):
        return None
    rows = of_tenants(Usage.objects.filter(day=day, request_id=spelled), tenant_ids)
    lines = _with_adjustments(rows.select_related("tenant", "key", "project")[:1])
    return lines[0] if lines else None


def adjustments_page(
    *,
    tenant_ids: frozenset[int] | None,
    after: str | None,
    limit: int,
    request_id: str = "",
) -> Page[AdjustmentLine]:
    """Corrections, newest first."""
    rows = of_tenants(UsageAdjustment.objects.all(), tenant_ids)
    if request_id:
        rows = rows.filter(request_id=request_id)
    page = take(
        rows.select_related("tenant"), order=("-id",), after=after, limit=min(limit, MAX_LIMIT)
    )
    return page.map(_adjustment_line)


def ledger_totals(*, tenant_ids: frozenset[int] | None, since: datetime, until: datetime) -> Totals:
    """Sums of [since, until), widened to whole minutes; one query over rollups."""
    sums = _period(tenant_ids, since, until).aggregate(
        **{name: Sum(name) for name in Totals.__slots__}
    )
    return Totals.of(sums)


def added(groups: tuple[Spend, ...]) -> Totals | None:
    """What the groups of one period add up to; None where more than `MAX_GROUPS` may have spent.

    A page whose rows come from one read takes its total from the same: rows that are booked
    between two reads would else stand in one of them only.
    """
    if len(groups) >= MAX_GROUPS:
        return None
    names = Totals.__slots__
    return Totals(**{name: sum(getattr(one.totals, name) for one in groups) for name in names})


def spend_by_tenant(
    *, tenant_ids: frozenset[int] | None, since: datetime, until: datetime
) -> tuple[Spend, ...]:
    """Sums of [since, until) for each tenant, dearest first, at most `MAX_GROUPS`."""
    return _spend(_period(tenant_ids, since, until), "tenant_id", "tenant__slug")


def spend_by_model(
    *, tenant_ids: frozenset[int] | None, since: datetime, until: datetime
) -> tuple[Spend, ...]:
    """Sums of [since, until) for each model that served, dearest first, at most `MAX_GROUPS`."""
    return _spend(_period(tenant_ids, since, until), "model", "model")


def spend_by_key(
    *, tenant_ids: frozenset[int] | None, since: datetime, until: datetime
) -> tuple[Spend, ...]:
    """Sums of [since, until) for each key, dearest first, at most `MAX_GROUPS`."""
    return _spend(_period(tenant_ids, since, until), "key_id", "key_id")


def _period(
    tenant_ids: frozenset[int] | None, since: datetime, until: datetime
) -> QuerySet[UsageRollup]:
    return of_tenants(UsageRollup.objects.filter(periods_filter(since, until)), tenant_ids)


def periods_filter(since: datetime, until: datetime) -> Q:
    """Condition for the rollup rows that cover [since, until), widened to minutes, each once."""
    parts = Q(pk__in=[])
    for part in cover(since, until):
        parts |= Q(grain=part.grain, start_at__gte=part.since, start_at__lt=part.until)
    return parts


def of_tenants(rows: QuerySet[M], tenant_ids: frozenset[int] | None) -> QuerySet[M]:
    """Rows of those tenants, by their `tenant_id`; None is all tenants."""
    if tenant_ids is None:
        return rows
    if not tenant_ids:
        return rows.none()
    if len(tenant_ids) == 1:  # equality keeps the index's order, a list would sort
        return rows.filter(tenant_id=next(iter(tenant_ids)))
    return rows.filter(tenant_id__in=sorted(tenant_ids))


def _spend(rows: QuerySet[UsageRollup], subject: str, label: str) -> tuple[Spend, ...]:
    # aliases: an annotation may not have the name of a column
    dearest = F("sum_spend_nanousd").desc()
    found = (
        rows.order_by()
        .values(group=F(subject), group_label=F(label))
        .annotate(**{f"sum_{name}": Sum(name) for name in Totals.__slots__})
        .order_by(dearest, "group")[:MAX_GROUPS]
    )
    return tuple(_spend_of(dict(row)) for row in found)


def _spend_of(row: dict[str, Any]) -> Spend:
    return Spend(str(row["group"]), str(row["group_label"]), Totals.of(row, "sum_"))


def _with_adjustments(rows: Iterable[Usage]) -> tuple[UsageLine, ...]:
    lines = [_usage_line(row) for row in rows]
    if not lines:
        return ()
    sums = (
        UsageAdjustment.objects.filter(request_id__in=[line.request_id for line in lines])
        .values("request_id")
        .annotate(total=Sum("spend_nanousd"))
        .order_by()
    )
    adjusted = {str(row["request_id"]): int(row["total"]) for row in sums}
    return tuple(
        replace(line, adjusted_nanousd=adjusted[line.request_id])
        if line.request_id in adjusted
        else line
        for line in lines
    )


_SAME = (
    "day", "tenant_id", "key_id", "project_id", "model_asked", "model", "pool", "replica",
    "region", "work_class", "status", "usage_source", "is_suspicious", "is_stream", "http_status",
    "error_code", "started_at", "first_token_at", "ended_at", "input_tokens", "cached_tokens",
    "output_tokens", "reasoning_tokens", "cache_write_tokens", "images", "spend_nanousd",
    "held_input_tokens", "held_output_tokens", "held_nanousd", "attempts", "policy",
    "price_version", "gateway", "upstream_request_id", "task_id", "task_kind", "step", "hops_us",
)  # fmt: skip


def _usage_line(row: Usage) -> UsageLine:
    return UsageLine(
        request_id=str(row.request_id),
        kind=SettleKind(row.kind),
        tenant=row.tenant.slug,
        key=row.key.name,
        key_prefix=row.key.prefix,
        project=row.project.slug,
        session=row.session or "",
        parent_id=row.parent_id or "",
        operation=row.operation or "",
        **{name: getattr(row, name) for name in _SAME},
    )


def _adjustment_line(row: UsageAdjustment) -> AdjustmentLine:
    return AdjustmentLine(
        id=row.pk,
        request_id=str(row.request_id),
        day=row.day,
        tenant_id=row.tenant_id,
        tenant=row.tenant.slug,
        reason=row.reason,
        note=row.note,
        requests=row.requests,
        input_tokens=row.input_tokens,
        output_tokens=row.output_tokens,
        spend_nanousd=row.spend_nanousd,
        created_at=row.created_at,
    )
