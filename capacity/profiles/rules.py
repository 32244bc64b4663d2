"""When a fit becomes a pool's next profile, and how its terms are written for people."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Final

from capacity.simulation.calibration import Calibration, Window, difference
from capacity.simulation.profiles import StepTimes

WORTH_A_VERSION: Final = 0.02  # nearer to the one in use: nobody would plan another replica by it
# Term -> what it is a time of, unit, factor to it.
TERMS: Final = (
    ("t0_s", "A step, whatever is in it", "ms", 1e3),
    ("c_s", "Each token of a step, prefill or decode", "µs", 1e6),
    ("d_s", "Each token of context that a step's decodes read", "ns", 1e9),
    ("e_s", "Each pair of prompt tokens that attention joins", "ns", 1e9),
    ("expert_s", "All experts of a mixture, times the share touched", "ms", 1e3),
    ("verify_s", "Checking drafted tokens, each sequence", "µs", 1e6),
)


@dataclass(frozen=True, slots=True)
class Term:
    """One term in its unit; None where there is no such value."""

    name: str
    words: str
    unit: str
    prior: float | None
    fitted: float | None
    refused: float | None


def is_new_version(found: Calibration, windows: Sequence[Window], in_use: StepTimes | None) -> bool:
    """Whether an accepted fit says something else than the version in use."""
    if not found.is_accepted:
        return False
    return in_use is None or difference(windows, found.times, in_use) >= WORTH_A_VERSION


def verdict_of(found: Calibration, *, has_version: bool, is_new: bool) -> str:
    """Why the last calibration changed what it changed, one sentence."""
    if is_new:
        return "Accepted: foretells unseen windows better than the prior."
    if found.is_accepted:
        return f"Within {WORTH_A_VERSION:.0%} of the version in use: no new one."
    kept = "the version in use stays" if has_version else "the prior stays"
    return f"{found.reason[:1].upper()}{found.reason[1:]}: {kept}."


def terms_of(
    prior: StepTimes | None, fitted: StepTimes | None, refused: StepTimes | None
) -> tuple[Term, ...]:
    """The terms that any of them has, in their units."""
    rows = []
    for name, words, unit, factor in TERMS:
        values = [
            None if times is None else getattr(times, name) * factor
            for times in (prior, fitted, refused)
        ]
        if any(values) or name in ("t0_s", "c_s", "d_s", "e_s"):
            rows.append(Term(name.removesuffix("_s"), words, unit, *values))
    return tuple(rows)


def as_json(times: StepTimes) -> dict[str, float]:
    """The terms by name, as rows keep them."""
    return asdict(times)
