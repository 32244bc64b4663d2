"""Gateway, collector, worker and ledger writer die in turn under traffic: nothing is lost."""

import os
import signal
from collections import Counter
from typing import Any

import redis

from tests.breaking import wait_for
from tests.calling import QUIET_S, booked, calling, holds
from tests.conftest import Stack

KILLED = ("gateway-g0", "collector", "worker", "ledger")


def test_each_process_killed_in_turn_recovers_and_every_answer_has_one_row(stack: Stack) -> None:
    with calling(stack) as callers:
        wait_for(callers.grows(), "answers before the first kill")
        for name in KILLED:
            before = stack.process(name)
            os.kill(before["pid"], signal.SIGKILL)

            def is_back(name: str = name, before: dict[str, Any] = before) -> bool:
                now = stack.process(name)
                return now["pid"] not in (None, before["pid"]) and now["readiness"] == "ready"

            wait_for(is_back, f"{name} back after kill -9")
            assert stack.process(name)["restarts"] == before["restarts"] + 1
            wait_for(callers.grows(), f"answers after {name} was killed")
    assert callers.answered
    os.kill(stack.process("traffic")["pid"], signal.SIGSTOP)
    store = redis.Redis.from_url(stack.settings["REDIS_URL"])
    try:
        wait_for(lambda: not holds(store), f"end of all holds: {holds(store)}", QUIET_S)
        wanted = Counter(callers.answered)
        wait_for(
            lambda: booked(stack, callers.answered) == wanted,
            "exactly one row for each answer",
            QUIET_S,
        )
    finally:
        os.kill(stack.process("traffic")["pid"], signal.SIGCONT)
    assert not store.keys("{b*}:h:*")
