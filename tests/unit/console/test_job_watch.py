"""When a heartbeat stops because the loop behind it does."""

import pytest

from console.jobs import watch
from console.jobs.watch import ConsumerWatch, LoopWatch


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(watch.time, "monotonic", lambda: now[0])
    return now


def test_a_consumer_is_stuck_only_if_it_has_room_and_leaves_what_waits(clock: list[float]) -> None:
    facts: dict[str, int | None] = {"waiting": 3, "room": 1}
    one = ConsumerWatch(lambda: facts["waiting"], lambda: bool(facts["room"]))
    assert one.why_stuck() == ""
    clock[0] += 59
    assert one.why_stuck() == ""
    clock[0] += 2
    assert one.why_stuck() == "took no job for 61 s while 3 wait"
    one.took()
    assert one.why_stuck() == ""
    for name, value in (("waiting", 0), ("waiting", None), ("room", 0)):
        clock[0] += 61
        assert one.why_stuck() == ""
        clock[0] += 61
        assert one.why_stuck() != ""
        before, facts[name] = facts[name], value
        assert one.why_stuck() == "", (name, value)
        facts[name] = before


def test_a_loop_is_stuck_when_it_has_not_turned_between_questions(clock: list[float]) -> None:
    one = LoopWatch()
    clock[0] += 1000
    assert one.why_stuck() == "", "a stopped process that goes on is asked before it is blamed"
    clock[0] += 61
    assert one.why_stuck() == "its loop has not turned for 61 s"
    one.turned()
    assert one.why_stuck() == ""
