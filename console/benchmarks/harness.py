"""Compare a candidate with a baseline in one call: interleaved rounds, ratios, and their spread."""

import os
import socket
import statistics
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Figure:
    """One named comparison: `ratio` is candidate over baseline, the median of the rounds."""

    name: str
    unit: str
    baseline: float
    candidate: float
    ratio: float
    ratio_min: float
    ratio_max: float
    rounds: int

    def line(self) -> str:
        """One line for people."""
        return (
            f"{self.name}: {self.ratio:.2f}x of the baseline "
            f"({self.ratio_min:.2f}-{self.ratio_max:.2f} over {self.rounds} rounds; "
            f"{self.candidate:.1f} against {self.baseline:.1f} {self.unit})"
        )

    def as_json(self) -> dict[str, object]:
        """The figure as one JSON object."""
        return asdict(self)


def compare(
    name: str, unit: str, baseline: Callable[[], float], candidate: Callable[[], float], rounds: int
) -> Figure:
    """Run both in turn `rounds` times, so that drift of the machine hits both alike."""
    pairs = [(baseline(), candidate()) for _ in range(rounds)]
    return figure_of(name, unit, pairs)


def figure_of(name: str, unit: str, pairs: list[tuple[float, float]]) -> Figure:
    """A figure from (baseline, candidate) pairs, one a round."""
    ratios = [new / old for old, new in pairs]
    return Figure(
        name=name,
        unit=unit,
        baseline=statistics.median(old for old, _ in pairs),
        candidate=statistics.median(new for _, new in pairs),
        ratio=statistics.median(ratios),
        ratio_min=min(ratios),
        ratio_max=max(ratios),
        rounds=len(pairs),
    )


def cpu_s(pid: int) -> float:
    """User and system seconds that a process and its live children have used."""
    own = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    total = (int(own[11]) + int(own[12])) / TICKS_PER_S
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return total + sum(cpu_s(int(child)) for child in children)


def free_port() -> int:
    """A port that was free a moment ago on loopback."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
