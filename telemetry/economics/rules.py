"""GPU time and carbon of a period, shared out to the tasks that ended in it."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from telemetry.stats.carbon import Footprint, Inputs, footprint, share_of


@dataclass(frozen=True, slots=True)
class Stated:
    """A figure with its source; `is_own` when a person stated it."""

    value: float
    source: str
    is_own: bool


@dataclass(frozen=True, slots=True)
class PoolFacts:
    """What a pool held and did. Work in work units (decision core, section 4)."""

    pool: str
    region: str
    hardware: str
    gpu_s: float
    work: float
    task_work: float


@dataclass(frozen=True, slots=True)
class PoolCarbon:
    """A pool's part. `footprint` None: `missing` says which input nobody stated."""

    facts: PoolFacts
    task_gpu_s: float
    footprint: Footprint | None
    task_footprint: Footprint | None
    missing: str


@dataclass(frozen=True, slots=True)
class Economics:
    """A period's GPU time and carbon over `pools`, and per task that ended in it.

    Carbon sums cover the pools whose inputs are known: `unknown_gpu_s` is what they leave out.
    """

    pools: tuple[PoolCarbon, ...]
    tasks: int

    @property
    def gpu_s(self) -> float:
        """GPU-seconds held."""
        return sum(one.facts.gpu_s for one in self.pools)

    @property
    def unknown_gpu_s(self) -> float:
        """GPU-seconds of pools without stated inputs."""
        return sum(one.facts.gpu_s for one in self.pools if one.footprint is None)

    @property
    def footprint(self) -> Footprint | None:
        """Carbon of all pools with known inputs; None when no GPU time is known."""
        return _sum(one.footprint for one in self.pools if one.facts.gpu_s)

    @property
    def task_gpu_s(self) -> float | None:
        """GPU-seconds per ended task; None without one."""
        total = sum(one.task_gpu_s for one in self.pools)
        return total / self.tasks if self.tasks else None

    @property
    def task_g(self) -> float | None:
        """Grams CO2e per ended task; None without one, or when an input of its pools is unknown."""
        used = [one for one in self.pools if one.task_gpu_s]
        if not self.tasks or any(one.task_footprint is None for one in used):
            return None
        total = _sum(one.task_footprint for one in used)
        return total.total_g / self.tasks if total else None


def economics(
    pools: Iterable[PoolFacts],
    grids: Mapping[str, tuple[Stated, Stated]],
    powers: Mapping[str, Stated],
    tasks: int,
) -> Economics:
    """Put a period together. `grids`: region -> (g CO2e per kWh, PUE); `powers`: hardware -> W."""
    return Economics(
        pools=tuple(_pool(one, grids.get(one.region), powers.get(one.hardware)) for one in pools),
        tasks=tasks,
    )


def _pool(facts: PoolFacts, grid: tuple[Stated, Stated] | None, power: Stated | None) -> PoolCarbon:
    task_gpu_s = share_of(facts.gpu_s, facts.task_work, facts.work)
    if grid is None or power is None:
        missing = [] if grid else [f"grid of region {facts.region}"]
        missing += [] if power else [f"power of {facts.hardware or 'unnamed hardware'}"]
        return PoolCarbon(facts, task_gpu_s, None, None, " and ".join(missing))
    inputs = Inputs(power.value, grid[0].value, grid[1].value)
    return PoolCarbon(
        facts, task_gpu_s, footprint(facts.gpu_s, inputs), footprint(task_gpu_s, inputs), ""
    )


def _sum(parts: Iterable[Footprint | None]) -> Footprint | None:
    total: Footprint | None = None
    for part in parts:
        if part is not None:
            total = part if total is None else total.plus(part)
    return total
