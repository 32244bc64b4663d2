"""A replica's life as a state machine: what was seen of it decides its next state and our next act.

`cold` (nothing runs) -> `loading` (started, not answering) -> `warming` (answers, has not proven
that it completes) -> `ready`; `draining` gets no new work until it is stopped; `failed` waits its
back-off and is started again.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum

from capacity.drivers.base import Observed, ReplicaStatus
from routing.contracts.enums import ReplicaLifecycle as Life

LOAD_LIMIT_S = 900.0  # 200 GB of weights over 25 Gb/s take 80 s; far beyond it has stopped loading
WARM_LIMIT_S = 60.0
# Gateways swap the snapshot within a second and stop choosing the replica; then calls finish.
DRAIN_LEAST_S = 3.0
DRAIN_LIMIT_S = 60.0
UNANSWERED_LIMIT = 3  # looks in a row without an answer before a live process is replaced
RETRY_FIRST_S = 2.0
RETRY_MOST_S = 60.0
SOUND_AFTER_S = 60.0  # ready for so long, a replica starts with a clean record
MAX_FAILURES = 1000  # keeps the count finite
MAX_REPLICAS = 256  # of one pool: bounds a pass of reconciling


class Act(StrEnum):
    """What the shell does after recording the state."""

    NOTHING = "nothing"
    START = "start"
    PROBE = "probe"
    STOP = "stop"  # then look no more: the replica leaves the pool
    KILL = "kill"  # end what is left of it; it will be started again


@dataclass(frozen=True, slots=True)
class ReplicaView:
    """A replica's row: `failures` in a row, `unanswered` looks in a row, `since_s` its state.

    One that `is_held` by a rollout is started once and watched; whether it is good enough to work
    is not decided here.
    """

    lifecycle: Life
    since_s: float
    is_wanted: bool
    failures: int = 0
    unanswered: int = 0
    is_held: bool = False
    drain_limit_s: float = DRAIN_LIMIT_S


@dataclass(frozen=True, slots=True)
class Next:
    """The state to record, its counters, and the act that follows."""

    lifecycle: Life
    cause: str
    act: Act
    failures: int
    unanswered: int = 0


def retry_after_s(failures: int) -> float:
    """Wait before the next start: none after a first failure, then 2 s doubling to a minute."""
    if failures <= 1:
        return 0.0
    return min(RETRY_MOST_S, RETRY_FIRST_S * 2.0 ** (min(failures, 16) - 2))


def ranked(ordinals: Sequence[int], wanted: int) -> frozenset[int]:
    """Which of a pool's replicas it wants: the lowest numbers, as many as `wanted`."""
    return frozenset(sorted(ordinals)[:wanted])


def free_ordinals(taken: Collection[int], count: int) -> list[int]:
    """The lowest `count` numbers that no replica of the pool has."""
    found: list[int] = []
    candidate = 0
    while len(found) < count:
        if candidate not in taken:
            found.append(candidate)
        candidate += 1
    return found


def needs_look(view: ReplicaView) -> bool:
    """Whether its state says anything runs."""
    return view.lifecycle not in (Life.COLD, Life.FAILED)


def advance(view: ReplicaView, seen: ReplicaStatus | None, now_s: float) -> Next:
    """Next state of a replica. `seen` is None when there was nothing to look at."""
    age_s = now_s - view.since_s
    if view.lifecycle is Life.DRAINING:
        return _draining(view, seen, age_s)
    if not view.is_wanted:
        return _unwanted(view)
    if not needs_look(view):
        return _absent(view, age_s)
    if seen is None or seen.observed in (Observed.GONE, Observed.WRONG):
        return failed(view, seen.cause if seen else "not found")
    return _loading(view, seen, age_s) if view.lifecycle is Life.LOADING else _up(view, seen, age_s)


def _absent(view: ReplicaView, age_s: float) -> Next:
    if view.lifecycle is Life.COLD:
        return Next(Life.LOADING, "starting", Act.START, view.failures)
    if view.is_held:
        return _stay(view)
    if age_s < retry_after_s(view.failures):
        return _stay(view)
    return Next(
        Life.LOADING, f"starting again after {view.failures} failures", Act.START, view.failures
    )


def failed(view: ReplicaView, cause: str) -> Next:
    """It broke: count it and clear away what is left."""
    count = min(view.failures + 1, MAX_FAILURES)
    return Next(Life.FAILED, cause, Act.KILL, count)


def warmed(view: ReplicaView, *, completed: bool, now_s: float) -> Next:
    """After a probe: ready, or warming on until its limit."""
    if completed:
        return Next(Life.READY, "completed its probe", Act.NOTHING, view.failures)
    if now_s - view.since_s > WARM_LIMIT_S:
        return failed(view, "answers health but completes nothing")
    return _stay(view)


def _stay(view: ReplicaView) -> Next:
    return Next(view.lifecycle, "", Act.NOTHING, view.failures, view.unanswered)


def _unwanted(view: ReplicaView) -> Next:
    if view.lifecycle is Life.READY:
        return Next(Life.DRAINING, "no longer wanted", Act.NOTHING, view.failures)
    return Next(Life.COLD, "no longer wanted", Act.STOP, 0)


def _draining(view: ReplicaView, seen: ReplicaStatus | None, age_s: float) -> Next:
    if seen is None or seen.observed in (Observed.GONE, Observed.WRONG):
        return Next(Life.COLD, "ended while draining", Act.STOP, 0)
    is_quiet = seen.in_flight == 0 and age_s >= DRAIN_LEAST_S
    if is_quiet or age_s >= view.drain_limit_s:
        return Next(Life.COLD, "drained" if is_quiet else _cut(view, seen), Act.STOP, 0)
    return _stay(view)


def _cut(view: ReplicaView, seen: ReplicaStatus) -> str:
    calls = "an unknown number of" if seen.in_flight is None else seen.in_flight
    return f"not drained within {view.drain_limit_s:.0f} s: {calls} calls cut"


def _loading(view: ReplicaView, seen: ReplicaStatus, age_s: float) -> Next:
    if seen.observed is Observed.SERVING:
        act = Act.NOTHING if view.is_held else Act.PROBE
        return Next(Life.WARMING, "answers health", act, view.failures)
    if age_s > LOAD_LIMIT_S:
        return failed(view, f"not loaded within {LOAD_LIMIT_S:.0f} s")
    return _stay(view)


def _up(view: ReplicaView, seen: ReplicaStatus, age_s: float) -> Next:
    if seen.observed is not Observed.SERVING:
        count = view.unanswered + 1
        if count >= UNANSWERED_LIMIT:
            return failed(view, f"runs but does not answer: {seen.cause}")
        return Next(view.lifecycle, "", Act.NOTHING, view.failures, count)
    if view.lifecycle is Life.WARMING:
        return _stay(view) if view.is_held else Next(Life.WARMING, "", Act.PROBE, view.failures)
    return Next(Life.READY, "", Act.NOTHING, 0 if age_s > SOUND_AFTER_S else view.failures)
