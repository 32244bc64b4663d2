"""What callers see while a part is down: PostgreSQL, console, worker, beat, collector, ledger.

Each answer, whole or cut, is one row of the ledger afterwards.
"""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack

import pytest

from tests.breaking import down, sessions_ended, stopped
from tests.conftest import Stack
from tests.faults.conftest import Broken
from tests.soak_run import until_all_run
from tests.soaking import OK, Traffic, settle_and_check

LONG_S = 20.0
SHORT_S = 8.0
GOOD_KINDS = {"ok", "hung up", "refused 429"}


def all_down(*names: str) -> Callable[[Stack], AbstractContextManager[object]]:
    def fault(stack: Stack) -> AbstractContextManager[object]:
        together = ExitStack()
        for name in names:
            together.enter_context(down(name, stack))
        return together

    return fault


FAULTS: dict[str, tuple[Callable[[Stack], AbstractContextManager[object]], float]] = {
    "PostgreSQL down": (all_down("postgres"), LONG_S),
    "PostgreSQL accepts and never answers": (lambda stack: stopped("postgres", stack), SHORT_S),
    "PostgreSQL ends every session": (sessions_ended, 1.0),
    "console, worker, beat, collector and ledger down": (
        all_down("console", "worker", "beat", "collector", "ledger"), SHORT_S
    ),
}  # fmt: skip


@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", FAULTS)
def test_callers_notice_nothing_and_every_answer_is_booked(broken: Broken, name: str) -> None:
    fault, lasts_s = FAULTS[name]
    stack = broken.stack
    until_all_run(stack)
    with Traffic(stack.gateway_url, broken.callers, before=stack) as traffic:
        traffic.until_served()
        began_s = time.monotonic()
        with fault(stack):
            time.sleep(lasts_s)
            ended_s = time.monotonic()
        traffic.until_served()
        traffic.stop()
    meanwhile = traffic.kinds(began_s, ended_s)
    assert set(traffic.kinds(began_s)) <= GOOD_KINDS, traffic.kinds(began_s)
    assert meanwhile[OK] >= lasts_s / 2, meanwhile
    books = settle_and_check(stack, traffic, quiet_s=120)
    print(f"\n{name}: {dict(meanwhile)}, {books}")
