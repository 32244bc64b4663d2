"""Figures that ship with the product, each with its source (see `data/README.md`)."""

import csv
from dataclasses import dataclass
from functools import cache
from pathlib import Path

DATA = Path(__file__).parent / "data"
DEFAULT_PUE = 1.2
PUE_SOURCE = "PUE 1.2: highest operator figure in ecologits 0.11.3"


@dataclass(frozen=True, slots=True)
class Figure:
    """One number and where it comes from."""

    value: float
    source: str


@cache
def grids() -> dict[str, Figure]:
    """Grams CO2e per kWh by cloud region; of a name that two providers use, the first."""
    found: dict[str, Figure] = {}
    for row in _rows("grid_carbon.csv"):
        source = f"{row['location']}: {row['source']}"
        found.setdefault(row["region"], Figure(float(row["g_co2e_per_kwh"]), source))
    return found


@cache
def powers() -> dict[str, Figure]:
    """Rated watts of a GPU by name."""
    return {
        row["hardware"]: Figure(float(row["power_w"]), row["source"])
        for row in _rows("gpu_power.csv")
    }


def _rows(name: str) -> list[dict[str, str]]:
    with (DATA / name).open(newline="") as lines:
        return list(csv.DictReader(lines))
