"""X8: hidden step times are found again from noisy windows, and bad windows are left out."""

from dataclasses import replace

from capacity.simulation.calibration import Window, calibrate
from capacity.simulation.chance import Chance
from capacity.simulation.profiles import StepTimes

TRUTH = StepTimes(7.47e-3, 14.4e-6, 24.5e-9, 2.25e-9)
PRIOR = StepTimes(9.5e-3, 10e-6, 35e-9, 1.5e-9)
NOISE = 0.05


def windows(count: int, seed: int, noise: float = NOISE) -> list[Window]:
    """Windows under a drifting load; the step time has a normal error of `noise`."""
    chance = Chance(seed)
    found = []
    for _ in range(count):
        decodes = 1 + 120 * chance.unit()
        prompt = 200 + 3000 * chance.unit()
        prefill = 2500 * chance.unit() ** 2
        context = decodes * prompt * (0.8 + 0.6 * chance.unit())
        attention = prefill * prompt / 2
        true_s = (
            TRUTH.t0_s
            + TRUTH.c_s * (prefill + decodes)
            + TRUTH.d_s * context
            + TRUTH.e_s * attention
        )
        # The sum of twelve uniform draws is normal enough.
        error = noise * (sum(chance.unit() for _ in range(12)) - 6)
        found.append(Window(200, prefill, decodes, context, prompt, true_s * (1 + error)))
    return found


def test_x8_hidden_terms_foretell_windows_that_the_fit_has_not_seen() -> None:
    errors = []
    for seed in range(10):
        found = calibrate(windows(200, seed), PRIOR)
        assert found.is_accepted, found.reason
        terms = found.times.t0_s, found.times.c_s, found.times.d_s, found.times.e_s
        assert min(terms) >= 0
        errors += [
            abs(sum(a * b for a, b in zip(one.row(PRIOR), terms, strict=True)) / one.step_s - 1)
            for one in windows(200, 1000 + seed, noise=0.0)
        ]
    errors.sort()
    assert sum(errors) / len(errors) <= 0.012
    assert errors[int(0.95 * len(errors))] <= 0.03


def test_x8_bad_windows_are_left_out() -> None:
    good = windows(200, 1)
    lies = [replace(one, step_s=one.step_s * 9) for one in windows(200, 2)]
    bad = [
        *(replace(one, preemptions=1) for one in lies),
        *(replace(one, has_restarted=True) for one in lies),
        *(replace(one, steps=19) for one in lies),
    ]
    assert calibrate([*good, *bad], PRIOR) == calibrate(good, PRIOR)


def test_a_fit_that_foretells_badly_keeps_the_prior() -> None:
    chance = Chance(3)
    noise = [replace(one, step_s=one.step_s * (0.2 + 3 * chance.unit())) for one in windows(200, 1)]
    found = calibrate(noise, PRIOR)
    assert (found.is_accepted, found.times) == (False, PRIOR)
    assert "above 15%" in found.reason


def test_a_right_prior_is_kept() -> None:
    exact = windows(200, 1, noise=0.0)
    found = calibrate(exact, TRUTH)
    assert (found.is_accepted, found.times) == (False, TRUTH)
    assert calibrate(exact[:19], PRIOR).reason.startswith("19 usable windows")
