"""Limits in use, and where each stands: read live from the counters that admit requests.

What cannot be read is `None`, never 0: a store that is away or rebuilding knows no position.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from typing import cast

from django.conf import settings
from django.utils import timezone
from redis import Redis
from redis.exceptions import RedisError

from console.errors import NoSuchTenant
from routing.contracts.enums import Dimension, LimitScope, WindowKind
from routing.contracts.snapshot import bucket_of
from routing.decision.limits import limit_name, window_edges
from routing.store import keys
from routing.store.packed import read_counter
from routing.store.pooled import node_of, sync_client
from tenants.directory.selectors import subject_of
from tenants.models import ApiKey, Limit, Tenant
from tenants.quotas.rules import anchor_of, remaining

MAX_LIMITS = 2000
MAX_KEYS_OFFERED = 200  # to choose from; a limit of an older key is set through the API
STORE_TIMEOUT_S = 1.0  # a page waits this long for positions, then shows them as unknown


@dataclass(frozen=True, slots=True)
class LimitView:
    """One bound as it is set. `name` is the public one, such as `spend_per_day`."""

    id: int
    name: str
    scope: LimitScope
    dimension: Dimension
    window: WindowKind
    amount: int
    key_id: int | None
    model: str | None
    work_class: str
    anchor_min: int = 0
    resource: str = ""

    @property
    def anchor_day(self) -> int | None:
        """Day an anchored week (1 Monday) or month begins on; None otherwise."""
        anchor = anchor_of(self.anchor_min)
        return None if anchor is None or self.window is WindowKind.DAY else anchor.day

    @property
    def anchor_time(self) -> str | None:
        """Local time (`HH:MM`) an anchored window begins at; None for the calendar's own."""
        anchor = anchor_of(self.anchor_min)
        return None if anchor is None else anchor.time


@dataclass(frozen=True, slots=True)
class LimitPosition:
    """A bound and where it stands; used, held and remaining are `None` while unknown.

    Window edges are aware UTC instants, `None` for gauges.
    """

    limit: LimitView
    used: int | None
    held: int | None
    remaining: int | None
    window_start: datetime | None
    window_end: datetime | None

    @property
    def is_known(self) -> bool:
        """Whether the store answered for this limit."""
        return self.used is not None


def keys_to_limit(tenant_id: int) -> dict[int, str]:
    """Names of a tenant's keys by id, newest first, at most `MAX_KEYS_OFFERED`."""
    rows = ApiKey.objects.filter(tenant_id=tenant_id).order_by("-pk")
    return {
        row.pk: f"{row.name} ({row.prefix}…{' revoked' if row.revoked_at else ''})"
        for row in rows[:MAX_KEYS_OFFERED]
    }


def limits(tenant_id: int) -> list[LimitView]:
    """A tenant's limits, ordered by scope, subject, dimension and window; at most `MAX_LIMITS`."""
    rows = Limit.objects.filter(tenant_id=tenant_id).select_related("model")
    ordered = rows.order_by(
        "scope", "key_id", "model__name", "work_class", "resource", "dimension", "window"
    )
    return [
        LimitView(
            id=row.pk,
            name=limit_name(Dimension(row.dimension), WindowKind(row.window)),
            scope=LimitScope(row.scope),
            dimension=Dimension(row.dimension),
            window=WindowKind(row.window),
            amount=row.amount,
            key_id=row.key_id,
            model=row.model.name if row.model else None,
            work_class=row.work_class,
            resource=row.resource,
            anchor_min=row.anchor_min,
        )
        for row in ordered[:MAX_LIMITS]
    ]


def positions(tenant_id: int) -> list[LimitPosition]:
    """Every limit of a tenant with its position now, in the order of `limits`.

    Two queries and two round trips to the store, whatever their number. Raises `NotFound`.
    """
    zone = Tenant.objects.filter(pk=tenant_id).values_list("timezone", flat=True).first()
    if zone is None:
        raise NoSuchTenant()
    bound = limits(tenant_id)
    try:
        return _read(_store(), str(tenant_id), zone, bound)
    except RedisError:
        now_ms = int(timezone.now().timestamp() * 1000)
        return [_position(limit, zone, now_ms, None) for limit in bound]


@lru_cache(maxsize=1)
def _store() -> Redis:
    return sync_client(settings.REDIS_URL, timeout_s=STORE_TIMEOUT_S)


def _read(
    store: Redis, tenant_id: str, zone: str, bound: Sequence[LimitView]
) -> list[LimitPosition]:
    bucket = bucket_of(tenant_id)
    store = node_of(store, keys.bucket_meta(bucket))
    first = store.pipeline(transaction=False)
    first.hmget(keys.bucket_meta(bucket), "epoch", "state", "run_id")
    first.time()
    first.info("server")
    (epoch, state, run_id), (seconds, micros), server = first.execute()
    now_ms = seconds * 1000 + micros // 1000
    # Counters of an earlier run of the server are a lost store's: nobody admits by them either.
    if epoch is None or state != b"ready" or run_id.decode() != keys.run_name(server["run_id"]):
        return [_position(limit, zone, now_ms, None) for limit in bound]
    second = store.pipeline(transaction=False)
    prefix = f"{keys.bucket_tag(bucket)}:{epoch.decode()}:"
    for limit in bound:
        second.get(prefix + _suffix(tenant_id, limit, zone, now_ms))
    answers = cast("list[bytes | None]", second.execute() if bound else [])
    return [
        _position(limit, zone, now_ms, _used_and_held(limit.dimension, read_counter(raw)))
        for limit, raw in zip(bound, answers, strict=True)
    ]


def _used_and_held(dimension: Dimension, fields: dict[str, int]) -> tuple[int, int]:
    return fields.get(dimension.value, 0), fields.get(f"{dimension.value}_h", 0)


def _suffix(tenant_id: str, limit: LimitView, zone: str, now_ms: int) -> str:
    subject = subject_of(limit.key_id, limit.model, limit.work_class, limit.resource)
    window = keys.window_name(limit.window, limit.anchor_min)
    base = keys.counter_base(tenant_id, limit.scope, subject, window)
    if limit.window is WindowKind.NOW:
        return f"g:{base}"
    return f"w:{base}:{window_edges(limit.window, zone, now_ms, limit.anchor_min)[0]}"


def window_of(limit: LimitView, zone: str, now_ms: int) -> tuple[datetime, datetime] | None:
    """Start and end (UTC) of the limit's window at `now_ms`; None for gauges."""
    if limit.window is WindowKind.NOW:
        return None
    start_ms, end_ms, _ = window_edges(limit.window, zone, now_ms, limit.anchor_min)
    return datetime.fromtimestamp(start_ms / 1000, UTC), datetime.fromtimestamp(end_ms / 1000, UTC)


def _position(
    limit: LimitView, zone: str, now_ms: int, taken: tuple[int, int] | None
) -> LimitPosition:
    start, end = window_of(limit, zone, now_ms) or (None, None)
    used, held = taken if taken is not None else (None, None)
    return LimitPosition(
        limit=limit,
        used=used,
        held=held,
        remaining=None if taken is None else remaining(limit.amount, *taken),
        window_start=start,
        window_end=end,
    )


@dataclass(frozen=True, slots=True)
class ReturnsView:
    """Callers that were refused by a limit and came back when they were told, today (UTC)."""

    limit: str
    admitted: int
    refused: int

    @property
    def count(self) -> int:
        """All of them."""
        return self.admitted + self.refused

    @property
    def refused_ratio(self) -> float:
        """Share that came in vain."""
        return self.refused / self.count

    @property
    def admitted_ratio(self) -> float:
        """Share that was told the truth."""
        return self.admitted / self.count


def returns_today(tenant_id: int) -> list[ReturnsView] | None:
    """A tenant's returns of today by limit, the most first; None while the store is away."""
    day = int(timezone.now().timestamp()) // 86_400
    try:
        found = cast("dict[bytes, bytes]", _store().hgetall(keys.returns_day(str(tenant_id), day)))
    except RedisError:
        return None
    counts: dict[str, dict[str, int]] = {}
    for name, value in found.items():
        limit, _, outcome = name.decode().partition("|")
        counts.setdefault(limit, {})[outcome] = int(value)
    views = [
        ReturnsView(limit, by.get("admitted", 0), by.get("refused", 0))
        for limit, by in counts.items()
    ]
    return sorted(views, key=lambda view: (-view.count, view.limit))


def returns_in_all(views: Sequence[ReturnsView]) -> ReturnsView | None:
    """All limits together; None when nobody came back."""
    if not views:
        return None
    return ReturnsView("", sum(v.admitted for v in views), sum(v.refused for v in views))
