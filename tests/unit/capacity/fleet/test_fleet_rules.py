"""A replica's life, one rule a test."""

import pytest

from capacity.drivers.base import Observed, ReplicaStatus
from capacity.fleet.rules import (
    DRAIN_LEAST_S,
    DRAIN_LIMIT_S,
    LOAD_LIMIT_S,
    UNANSWERED_LIMIT,
    WARM_LIMIT_S,
    Act,
    ReplicaView,
    advance,
    retry_after_s,
    warmed,
)
from routing.contracts.enums import ReplicaLifecycle as Life

SERVING = ReplicaStatus(Observed.SERVING, in_flight=0)
BUSY = ReplicaStatus(Observed.SERVING, in_flight=3)
STARTING = ReplicaStatus(Observed.STARTING, cause="refused")
GONE = ReplicaStatus(Observed.GONE, cause="its process ended")
WRONG = ReplicaStatus(Observed.WRONG, cause="serves ['x'], not 'y'")


def view(lifecycle: Life, *, is_wanted: bool = True, **counts: int) -> ReplicaView:
    return ReplicaView(lifecycle, since_s=0.0, is_wanted=is_wanted, **counts)


@pytest.mark.parametrize(
    ("lifecycle", "seen", "age_s", "after", "act"),
    [
        (Life.COLD, None, 0, Life.LOADING, Act.START),
        (Life.LOADING, STARTING, 10, Life.LOADING, Act.NOTHING),
        (Life.LOADING, STARTING, LOAD_LIMIT_S + 1, Life.FAILED, Act.KILL),
        (Life.LOADING, SERVING, 1, Life.WARMING, Act.PROBE),
        (Life.LOADING, GONE, 1, Life.FAILED, Act.KILL),
        (Life.LOADING, WRONG, 1, Life.FAILED, Act.KILL),
        (Life.WARMING, SERVING, 1, Life.WARMING, Act.PROBE),
        (Life.READY, SERVING, 1, Life.READY, Act.NOTHING),
        (Life.READY, GONE, 1, Life.FAILED, Act.KILL),
        (Life.READY, STARTING, 1, Life.READY, Act.NOTHING),
    ],
)
def test_wanted_replica(
    lifecycle: Life, seen: ReplicaStatus | None, age_s: float, after: Life, act: Act
) -> None:
    step = advance(view(lifecycle), seen, age_s)
    assert (step.lifecycle, step.act) == (after, act)


@pytest.mark.parametrize(
    ("lifecycle", "seen", "age_s", "after", "act"),
    [
        (Life.READY, SERVING, 1, Life.DRAINING, Act.NOTHING),
        (Life.COLD, None, 1, Life.COLD, Act.STOP),
        (Life.LOADING, STARTING, 1, Life.COLD, Act.STOP),
        (Life.FAILED, None, 1, Life.COLD, Act.STOP),
        (Life.DRAINING, SERVING, DRAIN_LEAST_S - 1, Life.DRAINING, Act.NOTHING),
        (Life.DRAINING, SERVING, DRAIN_LEAST_S, Life.COLD, Act.STOP),
        (Life.DRAINING, BUSY, DRAIN_LIMIT_S - 1, Life.DRAINING, Act.NOTHING),
        (Life.DRAINING, BUSY, DRAIN_LIMIT_S, Life.COLD, Act.STOP),
        (Life.DRAINING, GONE, 0, Life.COLD, Act.STOP),
    ],
)
def test_surplus_replica(
    lifecycle: Life, seen: ReplicaStatus | None, age_s: float, after: Life, act: Act
) -> None:
    step = advance(view(lifecycle, is_wanted=False), seen, age_s)
    assert (step.lifecycle, step.act) == (after, act)


def test_draining_goes_on_to_its_end_even_when_wanted_again() -> None:
    assert advance(view(Life.DRAINING), SERVING, DRAIN_LEAST_S).act is Act.STOP


def test_unknown_load_drains_for_the_whole_time() -> None:
    unknown = ReplicaStatus(Observed.SERVING, in_flight=None)
    assert advance(view(Life.DRAINING), unknown, DRAIN_LIMIT_S - 1).act is Act.NOTHING


def test_failed_replica_waits_longer_each_time() -> None:
    waits = [retry_after_s(count) for count in range(1, 9)]
    assert waits == [0, 2, 4, 8, 16, 32, 60, 60]
    early = advance(view(Life.FAILED, failures=4), None, 7.9)
    late = advance(view(Life.FAILED, failures=4), None, 8.0)
    assert (early.act, late.act) == (Act.NOTHING, Act.START)


def test_silence_is_forgiven_until_the_limit() -> None:
    step = advance(view(Life.READY, unanswered=UNANSWERED_LIMIT - 2), STARTING, 1)
    assert (step.lifecycle, step.unanswered) == (Life.READY, UNANSWERED_LIMIT - 1)
    step = advance(view(Life.READY, unanswered=UNANSWERED_LIMIT - 1), STARTING, 1)
    assert (step.lifecycle, step.act) == (Life.FAILED, Act.KILL)
    assert advance(view(Life.READY, unanswered=2), SERVING, 1).unanswered == 0


def test_record_is_clean_after_a_sound_minute() -> None:
    assert advance(view(Life.READY, failures=5), SERVING, 30).failures == 5
    assert advance(view(Life.READY, failures=5), SERVING, 61).failures == 0


def test_probe_decides_readiness() -> None:
    warming = view(Life.WARMING)
    assert warmed(warming, completed=True, now_s=1).lifecycle is Life.READY
    assert warmed(warming, completed=False, now_s=1).lifecycle is Life.WARMING
    assert warmed(warming, completed=False, now_s=WARM_LIMIT_S + 1).lifecycle is Life.FAILED
