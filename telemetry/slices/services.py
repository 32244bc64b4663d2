"""Roll minutes of the store up into PostgreSQL, and drop the old."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from django.db import transaction
from django.utils import timezone
from redis.exceptions import WatchError

from console.web.store import store
from routing.store import keys
from telemetry.models import SliceMinute
from telemetry.slices.rules import MINUTE_S
from telemetry.slices.selectors import changed_minutes, stored_minute, tenant_number
from telemetry.stats import sketch
from telemetry.stats.windows import SliceKey, SliceSum

KEPT = timedelta(days=14)  # minutes; longer history is the ledger's rollups
DROPPED_MAX = 20_000  # rows a run deletes: short transactions, the next run goes on
_BATCH_ROWS = 500
_SLICE = ["minute_at", "tenant_id", "model", "pool", "work_class"]
_FIGURES = [
    "requests", "failed", "cancelled", "refused", "input_tokens", "cached_tokens", "output_tokens",
    "spend_nanousd", "refused_input_tokens", "ttft_sketch", "itl_sketch", "e2e_sketch",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class RolledUp:
    """What a run did."""

    minutes: int
    rows: int


def roll_up(*, now: datetime | None = None) -> RolledUp:
    """Write every ended minute that changed since it was last written; safe to repeat.

    A minute is written whole, replacing its rows, and is marked done only if nothing was folded
    into it meanwhile: a late report has it written again. Raises `RedisError`.
    """
    now_minute = int((now or timezone.now()).timestamp()) // MINUTE_S
    minutes = rows = 0
    for minute, folds in changed_minutes(now_minute):
        rows += _write(minute, stored_minute(minute))
        _mark_done(minute, folds)
        minutes += 1
    return RolledUp(minutes=minutes, rows=rows)


def drop_old(*, now: datetime | None = None) -> int:
    """Delete minutes older than `KEPT`, at most `DROPPED_MAX` rows; how many."""
    oldest = SliceMinute.objects.filter(minute_at__lt=(now or timezone.now()) - KEPT)
    chosen = oldest.order_by("minute_at").values("pk")[:DROPPED_MAX]
    return SliceMinute.objects.filter(pk__in=chosen).delete()[0]


@transaction.atomic
def _write(minute: int, sums: dict[SliceKey, SliceSum]) -> int:
    minute_at = datetime.fromtimestamp(minute * MINUTE_S, UTC)
    rows = [
        _row(minute_at, tenant_id, key, counted)
        for key, counted in sorted(sums.items())
        if (tenant_id := tenant_number(key)) is not None
    ]
    SliceMinute.objects.bulk_create(
        rows,
        batch_size=_BATCH_ROWS,
        update_conflicts=True,
        unique_fields=_SLICE,
        update_fields=_FIGURES,
    )
    return len(rows)


def _row(minute_at: datetime, tenant_id: int, key: SliceKey, counted: SliceSum) -> SliceMinute:
    return SliceMinute(
        minute_at=minute_at,
        tenant_id=tenant_id,
        model=key.model,
        pool=key.pool,
        work_class=key.work_class,
        requests=counted.requests,
        failed=counted.failed,
        cancelled=counted.cancelled,
        refused=counted.refused,
        input_tokens=counted.input_tokens,
        cached_tokens=counted.cached_tokens,
        output_tokens=counted.output_tokens,
        spend_nanousd=counted.spend_nanousd,
        refused_input_tokens=counted.refused_input_tokens,
        ttft_sketch=sketch.pack(counted.ttft_s),
        itl_sketch=sketch.pack(counted.itl_s),
        e2e_sketch=sketch.pack(counted.e2e_s),
    )


def _mark_done(minute: int, folds: int) -> None:
    """Forget that a minute changed, unless it changed again since `folds` was read."""
    with store().pipeline(transaction=True) as pipe:
        pipe.watch(keys.SLICE_DIRTY)  # type: ignore[no-untyped-call]
        score = pipe.zscore(keys.SLICE_DIRTY, str(minute))
        if score is None or int(score) != folds:
            return
        pipe.multi()
        pipe.zrem(keys.SLICE_DIRTY, str(minute))
        try:
            pipe.execute()
        except WatchError:
            return  # the next run writes it again
