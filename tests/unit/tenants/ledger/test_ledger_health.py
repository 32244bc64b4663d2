from dataclasses import replace

import pytest

from tenants.ledger.rules.health import (
    BucketState,
    entry_order,
    needs_rebuild,
    next_epoch,
)

GOOD = BucketState(epoch=3, run_id="r", state="ready", pos="10-0", seq=2)


def test_equal_sides_are_sound() -> None:
    assert needs_rebuild(GOOD, GOOD, "r") == ""


def test_store_that_lags_its_ledger_is_sound() -> None:
    """Corrections and positions reach the store after their commit."""
    assert needs_rebuild(GOOD, replace(GOOD, pos="9-7", seq=1), "r") == ""


@pytest.mark.parametrize(
    ("row", "meta", "reason"),
    [
        (None, GOOD, "no row"),
        (GOOD, None, "no meta"),
        (GOOD, replace(GOOD, run_id="q"), "another server process"),
        (replace(GOOD, run_id="q"), GOOD, "another server process"),
        (replace(GOOD, state="rebuilding"), GOOD, "rebuilding without owner"),
        (GOOD, replace(GOOD, state="rebuilding"), "rebuilding without owner"),
        (GOOD, replace(GOOD, epoch=4), "epochs differ"),
        (GOOD, replace(GOOD, pos="10-1"), "the ledger went back"),
        (GOOD, replace(GOOD, seq=3), "the ledger went back"),
    ],
)
def test_what_cannot_be_trusted_is_named(
    row: BucketState | None, meta: BucketState | None, reason: str
) -> None:
    assert needs_rebuild(row, meta, "r") == reason


def test_next_epoch_is_above_both_sides() -> None:
    assert next_epoch(GOOD, replace(GOOD, epoch=9)) == 10
    assert next_epoch(None, None) == 1


def test_entry_ids_order_by_number_not_by_text() -> None:
    assert entry_order("9-10") > entry_order("9-9")
    assert entry_order("10-0") > entry_order("9-99")
