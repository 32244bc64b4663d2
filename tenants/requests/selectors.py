"""Quota requests as lists show them, and the fleet's headroom beside the open ones."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from django.db.models import Count, Q, QuerySet, Sum

from capacity.fleet.selectors import PoolRow, ReplicaRow, capacity_limits, fleet_page
from console.errors import InvalidInput, NotFound
from console.web.keyset import MAX_LIMIT, Page, take
from routing.contracts.enums import Dimension, LimitScope, WindowKind
from routing.decision.limits import limit_name
from tenants.models import Limit, QuotaRequest, QuotaRequestState, TenantState
from tenants.quotas.selectors import LimitView, limits
from tenants.requests.rules import Headroom, Load, ReplicaLoad, bounded_by, load_of

__all__ = [
    "FleetRoom",
    "RequestView",
    "Room",
    "askable_limits",
    "fleet_room",
    "limit_named",
    "one_request",
    "present_limit",
    "request_view",
    "requests_page",
    "room_beside",
]

Subject = tuple[str, str, str, str, str, str]  # scope, model, class, resource, dimension, window


@dataclass(frozen=True, slots=True)
class RequestView:
    """A request and what became of it. `limit` is the limit as it was when it was asked for.

    Amounts are in the unit of its dimension, money in nano-dollars.
    """

    id: int
    tenant_id: int
    tenant: str
    tenant_name: str
    timezone: str
    limit: LimitView
    amount_asked: int
    reason: str
    until: datetime | None
    asked_by: str
    created_at: datetime
    state: QuotaRequestState
    decided_by: str
    decided_at: datetime | None
    decision_reason: str
    amount_granted: int | None
    amount_back: int | None
    ends_at: datetime | None
    ended_at: datetime | None
    end_note: str

    @property
    def amount_then(self) -> int:
        """The limit when it was asked for."""
        return self.limit.amount

    @property
    def is_open(self) -> bool:
        """Whether it waits for a decision."""
        return self.state is QuotaRequestState.OPEN

    @property
    def subject(self) -> Subject:
        """What names its limit."""
        return _subject(self.limit)


@dataclass(frozen=True, slots=True)
class Room:
    """What stands beside one open request: promises against the fleet's bound, and the load."""

    headroom: Headroom
    load: Load


@dataclass(frozen=True, slots=True)
class FleetRoom:
    """The fleet as it is now, for every request of a page. `is_partial`: more pools than read."""

    bounds: Mapping[Dimension, int]
    pools: tuple[PoolRow, ...]
    is_partial: bool

    def load(self, model: str | None) -> Load:
        """Replicas of one model, or of all."""
        return load_of(
            ReplicaLoad(
                is_ready=row.state == "ready",
                kv_free_tokens=row.kv_free_tokens,
                kv_tokens=_kv_tokens(pool, row),
                input_tokens_per_s=row.prompt_tokens_per_s,
                output_tokens_per_s=row.generation_tokens_per_s,
            )
            for pool in self.pools
            if model is None or pool.model == model
            for row in pool.replicas
        )


def _kv_tokens(pool: PoolRow, row: ReplicaRow) -> int | None:
    """KV space of a replica: as it reports it, else as its pool is set; None is unknown."""
    ratio, free = row.kv_usage_ratio, row.kv_free_tokens
    if ratio is not None and free is not None and ratio < 1:
        return round(free / (1 - ratio))
    return pool.kv_capacity_tokens or None


def requests_page(
    *,
    tenant_ids: frozenset[int] | None,
    after: str | None,
    limit: int,
    states: Iterable[QuotaRequestState] = (),
) -> Page[RequestView]:
    """Requests, newest first, of these tenants (None: all) and states (none: all): one query."""
    rows = _scoped(tenant_ids)
    wanted = sorted(states)
    if wanted:
        rows = rows.filter(state__in=wanted)
    return take(rows, order=("-id",), after=after, limit=min(limit, MAX_LIMIT)).map(request_view)


def one_request(request_id: int, *, tenant_ids: frozenset[int] | None) -> RequestView:
    """One request. Raises `NotFound` also for another tenant's."""
    row = _scoped(tenant_ids).filter(pk=request_id).first()
    if row is None:
        raise NotFound("No such request.")
    return request_view(row)


def askable_limits(tenant_id: int) -> list[LimitView]:
    """Limits that only operators raise, in order: all but those of keys."""
    return [one for one in limits(tenant_id) if one.scope is not LimitScope.KEY]


def limit_named(
    tenant_id: int,
    *,
    scope: str,
    dimension: str,
    window: str,
    model: str = "",
    work_class: str = "",
    resource: str = "",
) -> LimitView:
    """The limit of that name and subject. Raises `InvalidInput`: what is not set needs no raise."""
    wanted = (scope, model, work_class, resource, dimension, window)
    for one in askable_limits(tenant_id):
        if _subject(one) == wanted:
            return one
    raise InvalidInput(
        "The tenant has no such limit.",
        field="scope",
        hint="GET limits/ lists them; what is not limited needs no request.",
    )


def present_limit(found: RequestView) -> LimitView | None:
    """The limit as it is set now; None if it was removed."""
    rows = (one for one in limits(found.tenant_id) if _subject(one) == found.subject)
    return next(rows, None)


def fleet_room() -> FleetRoom:
    """Limits of the fleet and its replicas with what the collector last saw: three queries."""
    page = fleet_page(limit=MAX_LIMIT)
    return FleetRoom(
        bounds={one.dimension: one.amount for one in capacity_limits(None)},
        pools=page.rows,
        is_partial=page.next_after is not None,
    )


def room_beside(found: Sequence[RequestView]) -> dict[int, Room]:
    """The room beside each open request by its id: the same few queries for any number."""
    waiting = [one for one in found if one.is_open]
    if not waiting:
        return {}
    room, promised = fleet_room(), _promised({one.limit.dimension for one in waiting})
    beside = {}
    for one in waiting:
        amount, tenants, present = promised.get(one.subject, (0, 0, {}))
        now = present.get(one.tenant_id, 0)
        is_bounded = bounded_by(one.limit.dimension, one.limit.window)
        bound = room.bounds.get(one.limit.dimension) if is_bounded else None
        beside[one.id] = Room(
            Headroom(
                tenants=tenants,
                promised=amount,
                promised_after=amount - now + max(now, one.amount_asked),
                bound=bound,
            ),
            room.load(one.limit.model),
        )
    return beside


def _promised(
    dimensions: set[Dimension],
) -> dict[Subject, tuple[int, int, dict[int, int]]]:
    """By subject: what active tenants may take together, how many they are, and each's own."""
    like = Q(dimension__in=sorted(dimensions), tenant__state=TenantState.ACTIVE)
    names = ("scope", "model__name", "work_class", "resource", "dimension", "window")
    rows = (
        Limit.objects.filter(like)
        .exclude(scope=LimitScope.KEY.value)
        .order_by()
        .values_list(*names)
        .annotate(total=Sum("amount"), tenants=Count("tenant_id"))
    )
    own: dict[Subject, dict[int, int]] = {}
    asked = QuotaRequest.objects.filter(state=QuotaRequestState.OPEN).values("tenant_id")
    for *named, tenant_id, amount in Limit.objects.filter(like, tenant_id__in=asked).values_list(
        *names, "tenant_id", "amount"
    ):
        own.setdefault(_key(named), {})[tenant_id] = amount
    return {
        _key(named): (int(total), tenants, own.get(_key(named), {}))
        for *named, total, tenants in rows
    }


def _key(named: Sequence[str | None]) -> Subject:
    scope, model, work_class, resource, dimension, window = (name or "" for name in named)
    return scope, model, work_class, resource, dimension, window


def _subject(limit: LimitView) -> Subject:
    return (
        limit.scope.value,
        limit.model or "",
        limit.work_class,
        limit.resource,
        limit.dimension.value,
        limit.window.value,
    )


def _scoped(tenant_ids: frozenset[int] | None) -> QuerySet[QuotaRequest]:
    rows = QuotaRequest.objects.select_related("tenant", "model", "asked_by", "decided_by")
    if tenant_ids is None:
        return rows
    return rows.filter(tenant_id__in=sorted(tenant_ids))


def request_view(row: QuotaRequest) -> RequestView:
    """A row, with its tenant, model and people loaded, as a frozen value."""
    dimension, window = Dimension(row.dimension), WindowKind(row.window)
    return RequestView(
        id=row.pk,
        tenant_id=row.tenant_id,
        tenant=row.tenant.slug,
        tenant_name=row.tenant.name,
        timezone=row.tenant.timezone,
        limit=LimitView(
            id=0,
            name=limit_name(dimension, window),
            scope=LimitScope(row.scope),
            dimension=dimension,
            window=window,
            amount=row.amount_then,
            key_id=None,
            model=row.model.name if row.model else None,
            work_class=row.work_class,
            resource=row.resource,
        ),
        amount_asked=row.amount_asked,
        reason=row.reason,
        until=row.until,
        asked_by=row.asked_by.username if row.asked_by else "system",
        created_at=row.created_at,
        state=QuotaRequestState(row.state),
        decided_by=row.decided_by.username if row.decided_by else "",
        decided_at=row.decided_at,
        decision_reason=row.decision_reason,
        amount_granted=row.amount_granted,
        amount_back=row.amount_back,
        ends_at=row.ends_at,
        ended_at=row.ended_at,
        end_note=row.end_note,
    )
