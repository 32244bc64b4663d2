"""The three questions carry the design's worked answers; a what-if adds up."""

from dataclasses import replace
from math import inf, isclose

import pytest

from capacity.lab.rules import Inputs, answer, questions
from capacity.simulation.catalogue import named

BASE = Inputs("8b-bf16-h100", 8, 4, 120, 800, 300, itl_target_s=0.025)


def of(inputs: Inputs):
    return answer(inputs, named(inputs.profile))


def test_the_three_answers() -> None:
    found = {question.slug: question for question in questions()}
    assert found["eight-gpus"].value == pytest.approx(18, abs=0.5)
    assert found["longer-prompts"].value == 10.5
    assert found["assistant"].value == pytest.approx(5.5)
    assert "12 replicas" in found["eight-gpus"].because[1]
    assert "would need 4 of" in found["eight-gpus"].because[2]


@pytest.mark.parametrize(
    ("guess", "words"),
    [(10.5, "close"), (11, "close"), (20, "1.9 times too high"), (5, "2.1 times too low")],
)
def test_a_guess_is_judged_by_its_factor(guess: float, words: str) -> None:
    question = next(it for it in questions() if it.slug == "longer-prompts")
    assert question.judged(guess) == words
    assert question.judged(0) == "too low"


def test_half_of_eight_gpus_is_used() -> None:
    found = of(BASE)
    assert found.compute_ratio == pytest.approx(0.48, abs=0.005)
    assert found.fits and found.shed_ratio == 0
    assert found.bottleneck == "prefill" and found.plan.need.replicas == 4
    assert found.plan.replicas == 8  # four domains of two


def test_growth_resends_and_loss_multiply() -> None:
    found = of(replace(BASE, growth=2, retry_ratio=0.5, lost_ratio=0.5))
    assert isclose(found.compute_ratio, of(BASE).compute_ratio * 2 * 1.5 * 2)
    assert found.replicas_left == 4 and not found.fits
    assert found.shed_ratio == pytest.approx(1 - 1 / found.compute_ratio)


def test_losing_the_cache_is_said_beside() -> None:
    warm = of(replace(BASE, cached_ratio=0.6))
    assert warm.demand.computed_tokens_per_s == pytest.approx(38_400)
    assert isclose(warm.cold_prefill_ratio, of(BASE).prefill_ratio)


def test_nothing_left_and_a_target_out_of_reach() -> None:
    gone = of(replace(BASE, lost_ratio=1))
    assert gone.replicas_left == 0 and gone.compute_ratio == inf and gone.itl_s == inf
    assert gone.shed_ratio == 1 and not gone.fits
    strict = of(replace(BASE, itl_target_s=0.001))
    assert strict.plan.replicas is None and not strict.fits
