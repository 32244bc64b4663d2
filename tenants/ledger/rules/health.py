"""Is a bucket's pair of memories, the ledger's row and the store's meta, sound?"""

from dataclasses import dataclass

READY = "ready"
REBUILDING = "rebuilding"
REGISTER_WAIT_MS = 6_000  # gateways register within one heartbeat (5 s); one more for the way


@dataclass(frozen=True, slots=True)
class BucketState:
    """One side's view of a bucket: the ledger's row, or the store's meta."""

    epoch: int
    run_id: str
    state: str
    pos: str
    seq: int


def needs_rebuild(row: BucketState | None, meta: BucketState | None, run_id: str) -> str:
    """Why the counters of a bucket cannot be trusted; empty when they can.

    Read the meta first and the row afterwards: positions are published after their commit, so then
    a meta ahead of its row means that PostgreSQL went back to a backup.
    """
    if row is None or meta is None:
        return "no row" if row is None else "no meta"
    if meta.run_id != run_id or row.run_id != run_id:
        return "another server process"
    if row.state != READY or meta.state != READY:
        return "rebuilding without owner"
    if row.epoch != meta.epoch:
        return "epochs differ"
    if meta.seq > row.seq or entry_order(meta.pos) > entry_order(row.pos):
        return "the ledger went back"
    return ""


def next_epoch(row: BucketState | None, meta: BucketState | None) -> int:
    """An epoch that neither side has seen."""
    return max(row.epoch if row else 0, meta.epoch if meta else 0) + 1


def entry_order(entry_id: str) -> tuple[int, int]:
    """Stream entry ids in order: milliseconds, then number."""
    at_ms, _, number = entry_id.partition("-")
    return int(at_ms), int(number or 0)
