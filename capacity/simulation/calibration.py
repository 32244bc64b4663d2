"""A pool's own step times from what its engine reports, window by window (decision-core, 1.5).

Each window gives the mean step: its duration y and its P, D and K. The four terms are fitted to the
last windows by relative error, none below 0, drawn a little to the prior, and
accepted only when they foretell windows that they have not seen, better than the prior does.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from capacity.simulation.fitting import Row, relative_errors, relative_fit
from capacity.simulation.profiles import StepTimes

MOST_WINDOWS: Final = 2000
PRIOR_WINDOWS: Final = 5.0  # 50, tried first, keeps 3 % of error where the prior is 14 % off
STEPS_LEAST: Final = 20
FOLDS: Final = 5
ERROR_MOST: Final = 0.15
WINDOWS_LEAST: Final = 4 * FOLDS  # each fold has four windows to be judged by


@dataclass(frozen=True, slots=True)
class Window:
    """Counters of one scrape window as deltas, per step where named so.

    `prompt_tokens` is the mean prompt of the window's requests, `step_s` the mean gap between
    tokens; `kv_tokens` are those in use.
    """

    steps: int
    prefill_per_step: float
    decodes_per_step: float
    kv_tokens: float
    prompt_tokens: float
    step_s: float
    preemptions: int = 0
    has_restarted: bool = False

    @property
    def is_usable(self) -> bool:
        """Whether its mean step says how long a step takes."""
        return (
            self.steps >= STEPS_LEAST
            and not self.preemptions
            and not self.has_restarted
            and self.step_s > 0
            and self.decodes_per_step > 0
        )

    def row(self) -> Row:
        """Factors of t0, c, d and e; a prompt's tokens attend to half of it on average."""
        prefill = self.prefill_per_step
        tokens = prefill + self.decodes_per_step
        return 1.0, tokens, self.kv_tokens, prefill * self.prompt_tokens / 2


@dataclass(frozen=True, slots=True)
class Calibration:
    """The times to use from now on, and why.

    Errors are mean relative ones of the step time, of the fit on windows it has not seen.
    """

    times: StepTimes
    is_accepted: bool
    windows: int
    error_ratio: float | None
    prior_error_ratio: float | None
    reason: str


def calibrate(windows: Sequence[Window], prior: StepTimes) -> Calibration:
    """Fit the last usable windows; the prior stays where the fit is no better."""
    usable = [one for one in windows if one.is_usable][-MOST_WINDOWS:]
    if len(usable) < WINDOWS_LEAST:
        reason = f"{len(usable)} usable windows: {WINDOWS_LEAST} are needed"
        return Calibration(prior, False, len(usable), None, None, reason)
    rows = [one.row() for one in usable]
    seconds = [one.step_s for one in usable]
    unseen: list[float] = []
    for fold in range(FOLDS):
        kept = [at for at in range(len(rows)) if at % FOLDS != fold]
        left = [at for at in range(len(rows)) if at % FOLDS == fold]
        found = _fit([rows[at] for at in kept], [seconds[at] for at in kept], prior)
        unseen += relative_errors([rows[at] for at in left], [seconds[at] for at in left], found)
    error = _mean_size(unseen)
    before = _mean_size(relative_errors(rows, seconds, _terms(prior)))
    if error > ERROR_MOST:
        reason = f"its error of {error:.1%} on unseen windows is above {ERROR_MOST:.0%}"
        return Calibration(prior, False, len(usable), error, before, reason)
    if error >= before:
        reason = f"its error of {error:.1%} on unseen windows is no better than the prior's"
        return Calibration(prior, False, len(usable), error, before, reason)
    times = StepTimes(*_fit(rows, seconds, prior))
    return Calibration(times, True, len(usable), error, before, "better than the prior")


def _fit(rows: Sequence[Row], seconds: Sequence[float], prior: StepTimes) -> list[float]:
    return relative_fit(rows, seconds, prior=_terms(prior), prior_rows=PRIOR_WINDOWS)


def _terms(times: StepTimes) -> list[float]:
    return [times.t0_s, times.c_s, times.d_s, times.e_s]


def _mean_size(errors: Sequence[float]) -> float:
    return sum(abs(one) for one in errors) / len(errors)
