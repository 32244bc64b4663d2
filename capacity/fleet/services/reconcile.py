"""Move the running replicas to the desired ones: one bounded pass, safe to repeat and to be killed.

A pass looks at each replica, lets `rules.advance` decide, records the new state and then acts, so
that a snapshot without a replica is on its way before the replica is touched. What a killed worker
left half done is found again: handles are in the rows, processes in the driver's files.
"""

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from django.db import connection
from django.utils import timezone

from capacity.drivers.base import DriverError, Handle, Observed, PoolDriver, PoolSpec, ReplicaStatus
from capacity.fleet.rules import (
    DRAIN_LIMIT_S,
    Act,
    Next,
    ReplicaView,
    advance,
    failed,
    needs_look,
    ranked,
    warmed,
)
from capacity.fleet.services.inventory import change_replica, drivers, ensure_replicas, specs_of
from capacity.models import Pool, Replica
from routing.contracts.enums import ReplicaLifecycle

logger = logging.getLogger(__name__)

PASS_LIMIT_S = 20.0  # the next beat goes on; below the age at which a silent job is taken away
LOOK_WAIT_S = 1.0
# A replica just started is waited for, so that a pool is ready in one pass if it loads fast.
START_WAIT_S = 6.0
MAX_POOLS = 2000
FOLLOW_ROUNDS = 2  # failed and started again, then loaded
STOP_DRAIN_S = 5.0  # its calls are done or out of time already; this is for closing sockets
KILL_DRAIN_S = 1.0
_UNSETTLED = (ReplicaLifecycle.LOADING, ReplicaLifecycle.FAILED)
_LOCK = 0x4852_5243  # "HRRC": one pass at a time over the whole installation


@dataclass(slots=True)
class _Pass:
    """One pass: when it must end, and whether its job was cancelled."""

    ends_s: float
    is_cancelled: Callable[[], bool]

    @property
    def is_over(self) -> bool:
        return time.monotonic() >= self.ends_s or self.is_cancelled()

    def wait_s(self, wanted_s: float) -> float:
        return max(0.1, min(wanted_s, self.ends_s - time.monotonic()))


@dataclass(frozen=True, slots=True)
class _Charge:
    """One replica of the pass, and who drives it."""

    driver: PoolDriver
    spec: PoolSpec
    replica_id: int
    is_wanted: bool


def reconcile_pools(*, is_cancelled: Callable[[], bool] = lambda: False) -> int:
    """One pass over every pool; how many replicas it looked at. 0 if another worker is at it."""
    with _alone() as is_ours:
        if not is_ours:
            return 0
        run = _Pass(time.monotonic() + PASS_LIMIT_S, is_cancelled)
        charges = [charge for pool in _pools() for charge in _charges(pool)]
        moved = _round(run, charges, LOOK_WAIT_S)
        for _ in range(FOLLOW_ROUNDS):
            moved = _round(run, moved, START_WAIT_S)
        return len(charges)


def _pools() -> list[Pool]:
    """Every pool, each time from another one on, so that slow pools starve no others."""
    pools = list(Pool.objects.select_related("model").order_by("name")[:MAX_POOLS])
    first = int(time.time()) % len(pools) if pools else 0
    return pools[first:] + pools[:first]


def _charges(pool: Pool) -> Iterator[_Charge]:
    driver = drivers().get(pool.driver)
    if driver is None:
        logger.warning("pool %s: no driver %s here", pool.name, pool.driver)
        return
    _complete(pool)
    rows = list(Replica.objects.filter(pool=pool, removed_at=None).order_by("ordinal"))
    kept = [row.ordinal for row in rows if not row.is_retired]
    wanted = ranked(kept, pool.desired_replicas + pool.surge_replicas)
    specs = specs_of(pool, rows)
    for row in rows:
        spec = specs[row.revision or pool.revision]
        yield _Charge(driver, spec, row.pk, not row.is_retired and row.ordinal in wanted)


def _round(run: _Pass, charges: list[_Charge], wait_s: float) -> list[_Charge]:
    """Advance each; those that have just begun to load, or to fail, are worth another look."""
    moved = []
    for charge in charges:
        if run.is_over:
            break
        row = Replica.objects.get(pk=charge.replica_id)
        before = row.lifecycle
        after = _advance(charge, row, run.wait_s(wait_s))
        if after in _UNSETTLED and after != before:
            moved.append(charge)
    return moved


def _complete(pool: Pool) -> None:
    kept = Replica.objects.filter(pool=pool, removed_at=None, is_retired=False).count()
    if kept < pool.desired_replicas:
        ensure_replicas(pool_id=pool.pk)


@contextmanager
def _alone() -> Iterator[bool]:
    """Hold the installation's lock on this connection; a killed worker's ends with it."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_try_advisory_lock(%s)", [_LOCK])
        is_ours = bool(cursor.fetchone()[0])
    try:
        yield is_ours
    finally:
        if is_ours:
            with connection.cursor() as cursor:
                cursor.execute("SELECT pg_advisory_unlock(%s)", [_LOCK])


def _view(row: Replica, *, is_wanted: bool) -> ReplicaView:
    return ReplicaView(
        lifecycle=ReplicaLifecycle(row.lifecycle),
        since_s=row.lifecycle_since.timestamp(),
        # Retired since the pass began: at once.
        is_wanted=is_wanted and not row.is_retired,
        is_held=row.is_held,
        drain_limit_s=DRAIN_LIMIT_S if row.drain_limit_s is None else row.drain_limit_s,
        failures=int(row.handle.get("failures", 0)),
        unanswered=int(row.handle.get("unanswered", 0)),
    )


def _advance(charge: _Charge, row: Replica, wait_s: float) -> ReplicaLifecycle:
    """Look, decide, record, act; the state it is in afterwards."""
    driver, spec = charge.driver, charge.spec
    _redate(row)
    view = _view(row, is_wanted=charge.is_wanted)
    seen = _look(driver, spec, row.handle, wait_s) if needs_look(view) else None
    step = advance(view, seen, timezone.now().timestamp())
    if step.act is Act.START:
        return _start(driver, spec, row, view, step)
    if step.act is Act.STOP:
        return _stop(driver, row, view, step)
    if not _record(row, view, step, row.handle):
        return view.lifecycle
    if step.act is Act.KILL:
        driver.stop(row.handle, KILL_DRAIN_S)
    if step.act is Act.PROBE:
        return _probe(charge, row)
    return step.lifecycle


def _redate(row: Replica) -> None:
    """A change dated in the future was written before the clock was set back: its waits start now.

    They would otherwise last until the clock has caught up.
    """
    now = timezone.now()
    if row.lifecycle_since > now:
        Replica.objects.filter(pk=row.pk).update(lifecycle_since=now)
        row.lifecycle_since = now


def _look(driver: PoolDriver, spec: PoolSpec, handle: Handle, wait_s: float) -> ReplicaStatus:
    try:
        return driver.status(spec, handle, wait_s=wait_s)
    except DriverError as error:
        return ReplicaStatus(Observed.GONE, cause=str(error))


def _start(
    driver: PoolDriver, spec: PoolSpec, row: Replica, view: ReplicaView, step: Next
) -> ReplicaLifecycle:
    try:
        handle = driver.start(spec, row.ordinal)
    except DriverError as error:
        logger.warning("replica %s: %s", row.name, error)
        step = failed(view, str(error))
        handle = row.handle
    _record(row, view, step, handle)
    return step.lifecycle


def _stop(driver: PoolDriver, row: Replica, view: ReplicaView, step: Next) -> ReplicaLifecycle:
    # First the process, then the row: a worker killed in between finds nothing left to stop.
    driver.stop(row.handle, STOP_DRAIN_S)
    change_replica(
        replica_id=row.pk,
        expected=view.lifecycle.value,
        lifecycle=step.lifecycle.value,
        cause=step.cause,
        handle={},
        removed_at=timezone.now(),
    )
    return step.lifecycle


def _probe(charge: _Charge, row: Replica) -> ReplicaLifecycle:
    driver = charge.driver
    row.refresh_from_db()
    view = _view(row, is_wanted=charge.is_wanted)
    completed = driver.probe(charge.spec, row.handle)
    step = warmed(view, completed=completed, now_s=timezone.now().timestamp())
    _record(row, view, step, row.handle)
    if step.act is Act.KILL:
        driver.stop(row.handle, KILL_DRAIN_S)
    return step.lifecycle


def _record(row: Replica, view: ReplicaView, step: Next, handle: Handle) -> bool:
    """Write what changed; False when somebody else went on with the row."""
    known = (view.lifecycle, view.failures, view.unanswered)
    if (step.lifecycle, step.failures, step.unanswered) == known and handle is row.handle:
        return True
    if step.lifecycle is not view.lifecycle:
        logger.info(
            "replica %s: %s -> %s (%s)", row.name, view.lifecycle, step.lifecycle, step.cause
        )
    return change_replica(
        replica_id=row.pk,
        expected=view.lifecycle.value,
        lifecycle=step.lifecycle.value,
        cause=step.cause,
        handle={**handle, "failures": step.failures, "unanswered": step.unanswered},
        address=(str(handle.get("host", "")), int(handle.get("port", 0))),
    )
