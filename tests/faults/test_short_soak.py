"""The soak's short form: what the other fault tests do not break, once each, under one traffic."""

import pytest

from tests.faults.conftest import Broken
from tests.soak_run import soak, until_all_run

SEED = 20261129
NAMES = (
    "gateway-g0 killed",
    "gateway hung",
    "engine killed",
    "engine hung",
    "ledger killed",
    "store and database killed",
    "supervisor killed",
)


@pytest.mark.timeout(900)
def test_short_soak_loses_and_doubles_nothing(broken: Broken) -> None:
    until_all_run(broken.stack)
    report = soak(
        broken.stack, broken.callers, seed=SEED, duration_s=0, names=NAMES, is_in_order=True
    )
    print(f"\n{report.table()}")
    assert [one.name for one in report.rounds] == list(NAMES)
