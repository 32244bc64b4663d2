"""Energy and carbon of GPU time (SCI, ISO/IEC 21031: `((E * I) + M) / R`).

E is the energy at the meter (GPU power x time x PUE), I the grid's intensity, M the hardware's
share of what making it emitted, R what it is divided by (a task, a request). Power is the board's
rated power unless measured: an upper bound, and said so wherever it is shown.
"""

from dataclasses import dataclass

HOUR_S = 3600
# 150 kg CO2e a GPU over four years of use: an assumption of ours, near published board footprints.
EMBODIED_G = 150_000.0
LIFESPAN_S = 4 * 365.25 * 24 * HOUR_S


@dataclass(frozen=True, slots=True)
class Inputs:
    """What turns GPU time into grams. `pue` is total facility energy over IT energy."""

    power_w: float
    grid_g_per_kwh: float
    pue: float


@dataclass(frozen=True, slots=True)
class Footprint:
    """Grams CO2e, and the energy at the meter behind the first part."""

    energy_kwh: float = 0.0
    operational_g: float = 0.0
    embodied_g: float = 0.0

    @property
    def total_g(self) -> float:
        """Operational and embodied."""
        return self.operational_g + self.embodied_g

    def plus(self, other: "Footprint") -> "Footprint":
        """The sum of two."""
        return Footprint(
            self.energy_kwh + other.energy_kwh,
            self.operational_g + other.operational_g,
            self.embodied_g + other.embodied_g,
        )


def footprint(gpu_s: float, inputs: Inputs) -> Footprint:
    """Energy and grams of so many GPU-seconds."""
    energy_kwh = gpu_s / HOUR_S * inputs.power_w / 1000 * inputs.pue
    return Footprint(
        energy_kwh=energy_kwh,
        operational_g=energy_kwh * inputs.grid_g_per_kwh,
        embodied_g=EMBODIED_G * gpu_s / LIFESPAN_S,
    )


def share_of(gpu_s: float, own_work: float, all_work: float) -> float:
    """GPU-seconds that a part of a pool's work is charged for: its share of the work.

    Idle time is shared out alike: somebody has to carry it. Never more than the pool had.
    """
    if all_work <= 0 or own_work <= 0:
        return 0.0
    return gpu_s * min(1.0, own_work / all_work)
