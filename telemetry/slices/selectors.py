"""Series of slices: minutes from PostgreSQL, the newest ones from the store.

A minute that the store marks as changed since it was rolled up (normally the running one and the
one before) is read there, every other one from its rows.
"""

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, cast

from django.utils import timezone
from redis.exceptions import RedisError

from console.errors import InvalidInput
from console.web.store import store
from routing.store import keys
from telemetry.models import SliceMinute
from telemetry.slices.rules import MINUTE_S, POINTS_MAX, Point, points, step_for
from telemetry.stats import sketch
from telemetry.stats.windows import TOTAL, SliceKey, SliceSum, decode_key, decode_sum, encode_key

logger = logging.getLogger(__name__)

ROWS_MAX = 100_000  # slice minutes that one series may merge; about a second of work
_SCAN_COUNT = 1000
_COLUMNS = (
    "minute_at", "requests", "failed", "cancelled", "refused", "input_tokens", "cached_tokens",
    "output_tokens", "spend_nanousd", "ttft_sketch",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class SliceFilter:
    """Which slices. `tenant_ids` None: of every tenant; an empty text: any."""

    tenant_ids: frozenset[int] | None
    model: str = ""
    pool: str = ""

    def holds(self, key: SliceKey) -> bool:
        """Whether a slice of the store passes."""
        if key == TOTAL or (self.model and key.model != self.model):
            return False
        if self.pool and key.pool != self.pool:
            return False
        return self.tenant_ids is None or tenant_number(key) in self.tenant_ids


def tenant_number(key: SliceKey) -> int | None:
    """The tenant's id; None for a slice without one."""
    return int(key.tenant_id) if key.tenant_id.isascii() and key.tenant_id.isdigit() else None


def series(
    wanted: SliceFilter, *, since_s: int, until_s: int, step_s: int | None = None
) -> tuple[int, list[Point]]:
    """The step in seconds and the points of `[since_s, until_s)` (Unix, widened to minutes).

    Raises `InvalidInput` when the span does not fit into `POINTS_MAX` points of the step, or more
    than `ROWS_MAX` slice minutes match.
    """
    since_s -= since_s % MINUTE_S
    until_s += -until_s % MINUTE_S
    step = step_for(since_s, until_s, step_s)
    if step is None:
        raise InvalidInput(
            f"The span must be positive and at most {POINTS_MAX} steps of whole minutes.",
            field="step_s",
            hint="Ask for a larger step_s, or leave it out.",
        )
    fresh = _changed_minutes(since_s // MINUTE_S, until_s // MINUTE_S)
    sums = [*_from_rows(wanted, since_s, until_s, skip=fresh), *_from_store(wanted, fresh)]
    return step, points(sums, since_s, until_s, step)


def recent_total(minutes: int) -> list[Point]:
    """All traffic in the last `minutes` minutes and the running one, from the store alone.

    One round trip whatever the number of slices. Without the store: no points.
    """
    now_minute = int(timezone.now().timestamp()) // MINUTE_S
    wanted = range(now_minute - minutes, now_minute + 1)
    try:
        with store().pipeline(transaction=False) as pipe:
            for minute in wanted:
                pipe.hget(keys.slice_minute(minute), cast(Any, encode_key(TOTAL)))
            found = pipe.execute()
    except RedisError as error:
        logger.info("recent minutes not read, the store is away: %s", error)
        return []
    sums = [(minute, decode_sum(raw)) for minute, raw in zip(wanted, found, strict=True) if raw]
    return points(sums, wanted[0] * MINUTE_S, (now_minute + 1) * MINUTE_S, MINUTE_S)


@dataclass(frozen=True, slots=True)
class ClassMinute:
    """One minute by (model, work class), over all tenants and pools."""

    minute: int
    sums: dict[tuple[str, str], SliceSum]


def class_minutes(minutes: int, *, until_minute: int | None = None) -> list[ClassMinute]:
    """The last `minutes` minutes with the running one, oldest first; empty without the store.

    One round trip; what it reads grows with models, not with tenants. `until_minute` (exclusive)
    ends it earlier.
    """
    end = until_minute if until_minute is not None else int(timezone.now().timestamp()) // 60 + 1
    wanted = range(end - minutes, end)
    try:
        with store().pipeline(transaction=False) as pipe:
            for minute in wanted:
                pipe.hgetall(keys.class_minute(minute))
            found = pipe.execute()
    except RedisError as error:
        logger.info("minutes by class not read, the store is away: %s", error)
        return []
    return [
        ClassMinute(minute, {_class_of(name): decode_sum(raw) for name, raw in rows.items()})
        for minute, rows in zip(wanted, found, strict=True)
    ]


def _class_of(name: bytes) -> tuple[str, str]:
    key = decode_key(name)
    return key.model, key.work_class


def stored_minute(minute: int) -> dict[SliceKey, SliceSum]:
    """Every slice of a minute in the store, without the total. Raises `RedisError`."""
    scan = store().hscan_iter(keys.slice_minute(minute), count=_SCAN_COUNT)
    found = {decode_key(name): raw for name, raw in cast("Iterator[tuple[bytes, bytes]]", scan)}
    return {key: decode_sum(raw) for key, raw in found.items() if key != TOTAL}


def changed_minutes(until_minute: int) -> list[tuple[int, int]]:
    """`(minute, number of its last fold)` changed since rolled up, oldest first.

    Raises `RedisError`.
    """
    found = cast(
        "list[tuple[bytes, float]]", store().zrange(keys.SLICE_DIRTY, 0, -1, withscores=True)
    )
    pairs = sorted((int(minute), int(folds)) for minute, folds in found)
    return [pair for pair in pairs if pair[0] < until_minute]


def _changed_minutes(since_minute: int, until_minute: int) -> list[int]:
    try:
        return [minute for minute, _ in changed_minutes(until_minute) if minute >= since_minute]
    except RedisError as error:
        logger.info("newest minutes not read, the store is away: %s", error)
        return []


def _from_store(wanted: SliceFilter, minutes: list[int]) -> Iterator[tuple[int, SliceSum]]:
    for minute in minutes:
        try:
            found = stored_minute(minute)
        except RedisError as error:
            logger.info("newest minutes not read, the store is away: %s", error)
            return
        for key, counted in found.items():
            if wanted.holds(key):
                yield minute, counted


def _from_rows(
    wanted: SliceFilter, since_s: int, until_s: int, skip: list[int]
) -> Iterator[tuple[int, SliceSum]]:
    rows = SliceMinute.objects.filter(minute_at__gte=_at(since_s), minute_at__lt=_at(until_s))
    if wanted.tenant_ids is not None:
        rows = rows.filter(tenant_id__in=wanted.tenant_ids)
    if wanted.model:
        rows = rows.filter(model=wanted.model)
    if wanted.pool:
        rows = rows.filter(pool=wanted.pool)
    if skip:
        rows = rows.exclude(minute_at__in=[_at(minute * MINUTE_S) for minute in skip])
    found = list(rows.values(*_COLUMNS)[: ROWS_MAX + 1])
    if len(found) > ROWS_MAX:
        raise InvalidInput(
            f"More than {ROWS_MAX} slice minutes match.",
            field="since",
            hint="Shorten the span, or name a tenant, model or pool.",
        )
    for row in found:
        minute_at, bins = row.pop("minute_at"), sketch.unpack(bytes(row.pop("ttft_sketch")))
        yield int(minute_at.timestamp()) // MINUTE_S, SliceSum(**row, ttft_s=bins)


def _at(unix_s: int) -> datetime:
    return datetime.fromtimestamp(unix_s, UTC)
