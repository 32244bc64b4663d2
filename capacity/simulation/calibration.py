"""A pool's own step times from what its engine reports, window by window (decision-core, 1.5).

Each window gives the mean step: its duration y and its P, D and K. The terms are fitted to the
last windows by relative error, none below 0, drawn a little to the prior, and
accepted only when they foretell windows that they have not seen, better than the prior does.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from capacity.simulation.fitting import Row, relative_errors, relative_fit
from capacity.simulation.profiles import StepTimes, touched_ratio
from routing.contracts.engine_windows import WINDOWS_MAX, EngineWindow

MOST_WINDOWS: Final = WINDOWS_MAX
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

    @classmethod
    def of_engine(cls, seen: EngineWindow) -> "Window":
        """A window as the collector kept it; those that say nothing it does not keep."""
        return cls(
            steps=seen.steps,
            prefill_per_step=seen.prefill_tokens / seen.steps,
            decodes_per_step=seen.decode_tokens / seen.steps,
            kv_tokens=seen.kv_tokens,
            prompt_tokens=seen.prompt_tokens / seen.prompts if seen.prompts else 0.0,
            step_s=seen.itl_s,
        )

    def row(self, prior: StepTimes) -> Row:
        """Factors of the terms that `prior` has; a prompt's tokens attend to half of it on average.

        The share of a mixture's experts is that which the step's tokens touch.
        """
        prefill = self.prefill_per_step
        tokens = prefill + self.decodes_per_step
        row = [1.0, tokens, self.kv_tokens, prefill * self.prompt_tokens / 2]
        if prior.expert_s:
            row.append(touched_ratio(prior.expert_ratio, tokens))
        if prior.verify_s:
            row.append(self.decodes_per_step)
        return row


@dataclass(frozen=True, slots=True)
class Calibration:
    """The times to use from now on, and why; `found` is the fit itself, accepted or not.

    Errors are mean relative ones of the step time, of the fit on windows it has not seen.
    """

    times: StepTimes
    found: StepTimes | None
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
        return Calibration(prior, None, False, len(usable), None, None, reason)
    rows = [one.row(prior) for one in usable]
    seconds = [one.step_s for one in usable]
    unseen: list[float] = []
    for fold in range(FOLDS):
        kept = [at for at in range(len(rows)) if at % FOLDS != fold]
        left = [at for at in range(len(rows)) if at % FOLDS == fold]
        found = _fit([rows[at] for at in kept], [seconds[at] for at in kept], prior)
        unseen += relative_errors([rows[at] for at in left], [seconds[at] for at in left], found)
    error = _mean_size(unseen)
    before = _mean_size(relative_errors(rows, seconds, _terms(prior)))
    times = _times(_fit(rows, seconds, prior), prior)
    if error > ERROR_MOST:
        reason = f"its error of {error:.1%} on unseen windows is above {ERROR_MOST:.0%}"
        return Calibration(prior, times, False, len(usable), error, before, reason)
    if error >= before:
        reason = f"its error of {error:.1%} on unseen windows is no better than the prior's"
        return Calibration(prior, times, False, len(usable), error, before, reason)
    return Calibration(times, times, True, len(usable), error, before, "better than the prior")


def difference(windows: Sequence[Window], one: StepTimes, other: StepTimes) -> float:
    """How far two pools' step times are apart on the windows: mean relative difference."""
    rows = [window.row(one) for window in windows if window.is_usable]
    first, second = _terms(one), _terms(other)
    if len(first) != len(second):
        return 1.0
    seconds = [_dot(row, second) for row in rows]
    kept = [(row, time) for row, time in zip(rows, seconds, strict=True) if time > 0]
    if not kept:
        return 0.0
    return _mean_size(relative_errors([row for row, _ in kept], [time for _, time in kept], first))


def _fit(rows: Sequence[Row], seconds: Sequence[float], prior: StepTimes) -> list[float]:
    return relative_fit(rows, seconds, prior=_terms(prior), prior_rows=PRIOR_WINDOWS)


def _terms(times: StepTimes) -> list[float]:
    terms = [times.t0_s, times.c_s, times.d_s, times.e_s]
    return terms + [one for one in (times.expert_s, times.verify_s) if one]


def _times(terms: Sequence[float], prior: StepTimes) -> StepTimes:
    t0_s, c_s, d_s, e_s, *rest = terms
    expert_s = rest.pop(0) if prior.expert_s else 0.0
    verify_s = rest.pop(0) if prior.verify_s else 0.0
    return StepTimes(t0_s, c_s, d_s, e_s, expert_s, prior.expert_ratio, verify_s)


def _dot(row: Row, terms: Sequence[float]) -> float:
    return sum(factor * term for factor, term in zip(row, terms, strict=True))


def _mean_size(errors: Sequence[float]) -> float:
    return sum(abs(one) for one in errors) / len(errors)
