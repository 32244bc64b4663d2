"""The KV grid of a pool, and sums that leave out what is stale."""

from collections.abc import Sequence
from dataclasses import dataclass

from capacity.fleet.selectors import PoolRow, ReplicaRow
from console.web import units
from console.web.live_state import STALE_AFTER_S
from routing.contracts.enums import ReplicaHealth

KV_WARN_PERCENT = 90
KV_FULL_PERCENT = 97
_GLYPHS = {4: "▲", 5: "■"}  # never colour alone
HEAT_STEPS = (25, 50, 75, KV_WARN_PERCENT, KV_FULL_PERCENT)  # percent, as shown


@dataclass(frozen=True, slots=True)
class Cell:
    """One replica in the KV grid. `tone` is a class of the style sheet, `words` says it all."""

    replica: str
    text: str
    tone: str
    words: str


@dataclass(frozen=True, slots=True)
class PoolSums:
    """A pool with sums over its fresh replicas; None when none is fresh."""

    pool: PoolRow
    cells: tuple[Cell, ...]
    fresh: int
    mean_kv_ratio: float | None
    running: float | None
    waiting: float | None
    output_per_s: float | None


def is_fresh(replica: ReplicaRow) -> bool:
    """Whether its live values are recent enough to count in totals."""
    age_s = replica.scrape_age_s
    is_old = age_s is None or age_s > STALE_AFTER_S
    return not is_old and replica.health in (ReplicaHealth.OK, ReplicaHealth.HUNG)


def kv_percent(ratio: float) -> int:
    """Occupancy as cells show it; what colours a cell and what Attention says follow from it."""
    return round(ratio * 100)


def kv_tone(ratio: float | None) -> str:
    """`bad` from `KV_FULL_PERCENT` on, `warn` from `KV_WARN_PERCENT` on, else empty."""
    percent = 0 if ratio is None else kv_percent(ratio)
    if percent >= KV_FULL_PERCENT:
        return "bad"
    return "warn" if percent >= KV_WARN_PERCENT else ""


def sums_of(row: PoolRow) -> PoolSums:
    """Cells of the grid, and sums over fresh replicas only: stale ones are out of totals."""
    fresh = [replica for replica in row.replicas if is_fresh(replica)]
    ratios = [one.kv_usage_ratio for one in fresh if one.kv_usage_ratio is not None]
    return PoolSums(
        pool=row,
        cells=tuple(_cell(replica) for replica in row.replicas),
        fresh=len(fresh),
        mean_kv_ratio=sum(ratios) / len(ratios) if ratios else None,
        running=_sum([one.running for one in fresh]),
        waiting=_sum([one.waiting for one in fresh]),
        output_per_s=_sum([one.generation_tokens_per_s for one in fresh]),
    )


def _sum(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _cell(replica: ReplicaRow) -> Cell:
    ratio = replica.kv_usage_ratio
    if not is_fresh(replica) or ratio is None:
        why = replica.health_reason or replica.cause or "no fresh report"
        return Cell(replica.name, "◌", "unknown", f"{replica.name}: {replica.state}, {why}")
    step = sum(kv_percent(ratio) >= bound for bound in HEAT_STEPS)
    words = f"{replica.name}: {replica.state}, KV {units.percent(ratio)}"
    if replica.health is not ReplicaHealth.OK:
        return Cell(replica.name, f"■{kv_percent(ratio)}", "h5", words)
    return Cell(replica.name, f"{_GLYPHS.get(step, '')}{kv_percent(ratio)}", f"h{step}", words)
