"""Committed usage that a database gone back to a backup no longer has.

The store publishes a position after its rows are committed and then trims the stream up to it. A
row of the ledger behind that position therefore means: what lies between was booked and is gone.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from tenants.ledger.rules.health import BucketState, entry_order

REASON_PREFIX = "gap: the database went back, rows are missing after "


@dataclass(frozen=True, slots=True)
class Gap:
    """Of one bucket: rows of stream entries after `since`, up to and with `until`, are missing."""

    bucket: int
    since: str
    until: str

    @property
    def reason(self) -> str:
        """What is written beside the parked position."""
        return REASON_PREFIX + self.since


@dataclass(frozen=True, slots=True)
class GapSummary:
    """All gaps on record. Instants are Unix seconds; `since_s` 0 is unknown: no row was left."""

    buckets: int = 0
    since_s: int = 0
    until_s: int = 0


def gap_of(bucket: int, row: BucketState | None, meta: BucketState | None) -> Gap | None:
    """What a bucket's row lacks that the store had acknowledged; None in all other cases.

    A row in a later epoch than the store's meta is a rebuild that ended between its two first
    steps: its position was set back by us, and the stream is read again from its start.
    """
    if meta is None or (row is not None and row.epoch > meta.epoch):
        return None
    since = "0-0" if row is None else row.pos
    if entry_order(meta.pos) <= entry_order(since):
        return None
    return Gap(bucket, since, meta.pos)


def summary(found: Iterable[tuple[str, str]]) -> GapSummary:
    """Of (parked position, reason) pairs as they are kept."""
    spans = [
        (entry_order(reason.removeprefix(REASON_PREFIX))[0], entry_order(until)[0])
        for until, reason in found
    ]
    if not spans:
        return GapSummary()
    return GapSummary(
        len(spans), min(since for since, _ in spans) // 1000, max(end for _, end in spans) // 1000
    )
