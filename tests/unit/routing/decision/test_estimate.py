from routing.decision.estimate import TEMPLATE_TOKENS, Ask, Estimate, Rates, estimate
from routing.decision.types import Reason, Refusal
from tests.stack import ALPHA, FREE


def bounds(ask: Ask, **changes: int) -> Estimate | Refusal:
    fields = {"rates": Rates(2.5), "context_tokens": 4096, "output_cap_tokens": 4096} | changes
    return estimate(ask, ALPHA, **fields)  # type: ignore[arg-type]


def held(ask: Ask, **changes: int) -> Estimate:
    found = bounds(ask, **changes)
    assert isinstance(found, Estimate)
    return found


def test_input_is_bytes_over_bytes_per_token_rounded_up() -> None:
    assert held(Ask(1)).amounts.input_tokens == 1
    assert held(Ask(5)).amounts.input_tokens == 2
    assert held(Ask(6)).amounts.input_tokens == 3


def test_stated_bound_is_held_for_every_choice() -> None:
    found = held(Ask(100, choices=4, output_tokens=1000))
    assert found.choice_output_tokens == 1000
    assert found.amounts.output_tokens == 4000
    assert found.amounts.spend_nanousd == 40 * 1000 + 4000 * 2000


def test_without_a_bound_prompt_and_output_fit_the_context() -> None:
    found = held(Ask(2500))
    assert found.amounts.input_tokens == 1000
    assert found.choice_output_tokens == 3096


def test_caps_bind() -> None:
    assert held(Ask(10, output_tokens=9000), output_cap_tokens=500).choice_output_tokens == 500
    assert held(Ask(10), output_cap_tokens=500).choice_output_tokens == 500


def test_prompt_that_cannot_fit_is_refused_and_one_that_might_is_not() -> None:
    refusal = bounds(Ask(8 * 4096))
    assert isinstance(refusal, Refusal)
    assert refusal.reason is Reason.INVALID_REQUEST
    assert held(Ask(8 * 4096 - 8)).choice_output_tokens == 256


def test_pictures_count_by_their_own_bound() -> None:
    found = held(Ask(25, images=1, picture_tokens=700, output_tokens=10), context_tokens=8192)
    assert found.amounts.input_tokens == 710
    assert found.amounts.spend_nanousd < 10_000 * 1000


def test_token_ids_count_exactly() -> None:
    assert held(Ask(0, input_tokens=77, output_tokens=1)).amounts.input_tokens == 77


def test_free_model_holds_no_money() -> None:
    found = estimate(Ask(100), FREE, rates=Rates(2.5), context_tokens=4096, output_cap_tokens=4096)
    assert isinstance(found, Estimate)
    assert found.amounts.spend_nanousd == 0


def test_input_is_never_held_above_the_context_of_each_prompt() -> None:
    assert held(Ask(30_000, output_tokens=1)).amounts.input_tokens == 4096
    assert held(Ask(60_000, prompts=4, choices=4)).amounts.input_tokens == 4 * 4096


def test_many_prompts_are_measured_one_by_one() -> None:
    assert isinstance(bounds(Ask(8 * 4096, prompts=2)), Estimate)
    refusal = bounds(Ask(2 * 8 * 4096, prompts=2, field="prompt"))
    assert isinstance(refusal, Refusal)
    assert refusal.param == "prompt"


def test_stated_bound_leaves_room_for_the_least_prompt() -> None:
    assert held(Ask(8000, output_tokens=4096)).choice_output_tokens == 3096


def test_dense_text_is_held_at_its_own_rate() -> None:
    assert held(Ask(500, dense_bytes=250, output_tokens=1)).amounts.input_tokens == 100 + 250


def test_a_model_that_nobody_has_seen_count_is_held_a_token_a_byte() -> None:
    unseen = Rates(2.5, is_unseen=True)
    for size in (33, 255, 256, 1_000, 4_000):
        assert held(Ask(size), rates=unseen).amounts.input_tokens == size  # type: ignore[arg-type]


def test_a_chat_template_is_held_beside_the_text() -> None:
    ask = Ask(100, is_templated=True, frame_tokens=4)
    assert held(ask).amounts.input_tokens == 40 + 4 + TEMPLATE_TOKENS
    known = Rates(2.5, template_tokens=21)
    assert held(ask, rates=known).amounts.input_tokens == 40 + 4 + 21  # type: ignore[arg-type]
    assert held(Ask(100)).amounts.input_tokens == 40


def test_its_answers_are_not_cut_short_for_that() -> None:
    seen, unseen = held(Ask(2500)), held(Ask(2500), rates=Rates(2.5, is_unseen=True))  # type: ignore[arg-type]
    assert seen.choice_output_tokens == unseen.choice_output_tokens == 3096
    assert unseen.amounts.input_tokens == 2500
    assert unseen.amounts.kv_tokens == 2500 + 3096
