"""One scripted hour of random faults (`manage.py test --soak`); figures in docs/soak.md.

HEADRACE_SOAK_S is its length, HEADRACE_SOAK_SEED draws the same faults again.
"""

import os
import random
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from tests.soak_run import soak, start_quiet_demo

DURATION_S = float(os.environ.get("HEADRACE_SOAK_S", "3600"))
SEED = int(os.environ.get("HEADRACE_SOAK_SEED", "0")) or random.SystemRandom().randrange(1, 10**6)

MONEY_S = float(os.environ.get("HEADRACE_SOAK_S", "600"))
WHO_COUNTS = ("gateway-g0 killed", "gateway-g1 killed", "ledger killed", "store killed")

pytestmark = [pytest.mark.soak, pytest.mark.timeout(DURATION_S + 1800)]


@pytest.fixture
def small_disk_stack(bare_stack: Any) -> Iterator[Any]:
    """The stack's directory is a mount of its own where we may make one, so that it can fill."""
    directory = bare_stack.state.parent
    mount = ["mount", "-t", "tmpfs", "-o", "size=1g,mode=711", "tmpfs", str(directory)]
    is_mounted = os.geteuid() == 0 and subprocess.run(mount, check=False).returncode == 0
    yield bare_stack
    bare_stack.manage("down")
    if is_mounted:
        subprocess.run(["umount", "-l", str(directory)], check=True)


def test_an_hour_of_faults_loses_and_doubles_nothing(small_disk_stack: Any) -> None:
    print(f"\nHEADRACE_SOAK_SEED={SEED} HEADRACE_SOAK_S={DURATION_S:.0f}", flush=True)
    callers = start_quiet_demo(small_disk_stack, "--gateways", "2")
    report = soak(small_disk_stack, callers, seed=SEED, duration_s=DURATION_S)
    print(report.table(), flush=True)
    assert {one.name for one in report.rounds}


def test_ten_minutes_of_kills_end_with_a_bill_that_is_right(small_disk_stack: Any) -> None:
    """kill -9 of all that counts or keeps money: every line of `reconcile` is 0 afterwards."""
    print(f"\nHEADRACE_SOAK_SEED={SEED} HEADRACE_SOAK_S={MONEY_S:.0f}", flush=True)
    callers = start_quiet_demo(small_disk_stack, "--gateways", "2")
    report = soak(small_disk_stack, callers, seed=SEED, duration_s=MONEY_S, names=WHO_COUNTS)
    print(report.table(), flush=True)
    if MONEY_S >= 600:  # a shorter run need not draw each of them
        assert {one.name for one in report.rounds} == set(WHO_COUNTS)
    assert report.bill is not None
    assert report.bill.compared > 0
