"""A row behind what the store acknowledged is a gap; an interrupted rebuild of ours is none."""

import pytest

from tenants.ledger.rules.gaps import Gap, GapSummary, gap_of, summary
from tenants.ledger.rules.health import BucketState

META = BucketState(4, "r", "ready", "2000-1", 0)


def row(epoch: int, pos: str) -> BucketState:
    return BucketState(epoch, "r", "ready", pos, 0)


@pytest.mark.parametrize(
    ("known", "meta", "gap"),
    [
        (row(4, "2000-1"), META, None),
        (row(4, "3000-0"), META, None),
        (row(4, "2000-0"), META, Gap(7, "2000-0", "2000-1")),
        (row(3, "1000-0"), META, Gap(7, "1000-0", "2000-1")),
        (None, META, Gap(7, "0-0", "2000-1")),
        (None, BucketState(4, "r", "ready", "0-0", 0), None),
        (row(5, "0-0"), META, None),  # step 1 of a rebuild committed, step 2 not sent
        (row(4, "1000-0"), None, None),  # an emptied store: nothing says that rows are missing
    ],
)
def test_gap_is_what_the_store_acknowledged_and_the_row_lacks(
    known: BucketState | None, meta: BucketState | None, gap: Gap | None
) -> None:
    assert gap_of(7, known, meta) == gap


def test_summary_spans_all_gaps_as_they_are_kept() -> None:
    gaps = [Gap(1, "5000-0", "9000-3"), Gap(2, "4000-7", "8000-0")]
    assert summary((gap.until, gap.reason) for gap in gaps) == GapSummary(2, 4, 9)
    assert summary([]) == GapSummary()
