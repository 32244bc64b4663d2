"""Silence, strays and starts that hang: what the supervisor makes of them."""

import pytest

from console.supervisor import watch
from console.supervisor.proc import Identity
from console.supervisor.program import Child, Program


def child(*, restarts_silent: bool = True) -> Child:
    return Child(
        Program(
            name="x",
            argv=(),
            environment={},
            probe=lambda pid: "",
            stage=1,
            restarts_silent=restarts_silent,
        )
    )


def test_one_missed_answer_is_not_silence() -> None:
    one = child()
    watch.note_answer(one, False, 0.0)
    assert not watch.is_silent(one)
    watch.note_answer(one, True, 5.0)
    watch.note_answer(one, False, 10.0)
    assert not watch.is_silent(one)
    watch.note_answer(one, False, 15.0)
    assert watch.is_silent(one)


def test_silence_ends_a_process_after_its_limit_in_time_and_in_questions() -> None:
    one = child()
    for second in range(0, 30, 5):
        watch.note_answer(one, False, float(second))
        assert watch.silent_too_long_s(one, float(second), 30.0) is None
    watch.note_answer(one, False, 30.0)
    assert watch.silent_too_long_s(one, 30.0, 30.0) == 30.0


def test_supervisor_that_was_stopped_itself_blames_nobody() -> None:
    one = child()
    watch.note_answer(one, False, 0.0)
    watch.note_answer(one, False, 500.0)
    assert watch.silent_too_long_s(one, 500.0, 30.0) is None


@pytest.mark.parametrize(("restarts_silent", "limit_s"), [(False, 30.0), (True, 0.0)])
def test_servers_and_a_limit_of_zero_are_never_ended_for_silence(
    restarts_silent: bool, limit_s: float
) -> None:
    one = child(restarts_silent=restarts_silent)
    for second in range(0, 600, 5):
        watch.note_answer(one, False, float(second))
    assert watch.is_silent(one)
    assert watch.silent_too_long_s(one, 600.0, limit_s) is None


def test_what_cannot_be_told_is_no_silence() -> None:
    one = child()
    for second in range(0, 600, 5):
        watch.note_answer(one, None, float(second))
    assert not watch.is_silent(one)


def test_only_a_restart_that_lasts_too_long_is_looked_at_for_hanging() -> None:
    one = child()
    one.started_s = 100.0
    assert not watch.hangs_at_start(one, 1000.0), "the first start has a limit of its own"
    one.was_ready = True
    assert not watch.hangs_at_start(one, 100.0 + watch.START_LIMIT_S - 1)
    assert watch.hangs_at_start(one, 100.0 + watch.START_LIMIT_S)


def test_stray_is_one_that_no_record_names_for_a_while() -> None:
    strays, lost, replica = watch.Strays(), Identity(7, 70), Identity(8, 80)
    for now_s in (0.0, 5.0):
        assert strays.over([lost, replica], {replica}, now_s) == []
    assert strays.over([lost, replica], {replica}, watch.STRAY_AFTER_S) == [lost]
    # A record that came late, or a successor of its pid, starts from nothing.
    assert strays.over([Identity(7, 71)], set(), watch.STRAY_AFTER_S) == []


def test_clock_that_is_set_is_a_step_and_one_that_is_slewed_is_not() -> None:
    clock = watch.ClockSteps()
    assert not clock.note(10_000.0, 0.0)
    assert not clock.note(10_005.1, 5.0), "slewed"
    assert clock.note(6_410.0, 10.0)
    assert clock.by_s == -3600.1
    assert clock.at == 6_410.0
    assert not clock.note(6_415.0, 15.0), "told once"
    assert clock.note(10_015.0, 15.0)
    assert clock.by_s == 3600.0
