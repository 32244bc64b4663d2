"""Questions are bounded in time and in threads."""

import threading
import time

import pytest

from console.conditions.flights import Flights


def test_a_question_without_an_answer_holds_nobody_up_and_one_thread() -> None:
    release, flights = threading.Event(), Flights()
    asked = []

    def hang() -> str:
        asked.append(1)
        release.wait(20)
        return "late"

    began_s = time.monotonic()
    for _ in range(5):
        answers = flights.ask({"hung": hang, "quick": lambda: 1}, deadline_s=0.2)
        assert answers == {"quick": 1}
    assert time.monotonic() - began_s < 1.0, "later askers do not wait the whole time again"
    assert len(asked) == 1
    release.set()
    assert flights.ask({"hung": hang}, deadline_s=5) == {"hung": "late"}


def test_who_asks_at_the_same_time_shares_the_answer() -> None:
    begun, release, flights = threading.Event(), threading.Event(), Flights()
    count = []

    def slow() -> int:
        begun.set()
        release.wait(20)
        count.append(1)
        return len(count)

    answers = []
    first = threading.Thread(target=lambda: answers.append(flights.ask({"s": slow}, 10)))
    first.start()
    begun.wait(10)
    second = threading.Thread(target=lambda: answers.append(flights.ask({"s": slow}, 10)))
    second.start()
    release.set()
    first.join(10)
    second.join(10)
    assert {"s": 1} in answers
    assert len(answers) == 2


def test_a_fault_of_the_question_itself_is_raised_where_it_was_asked() -> None:
    with pytest.raises(ZeroDivisionError):
        Flights().ask({"bad": lambda: 1 / 0})
