"""A stream that went on elsewhere is charged within its hold, and as one answer where it can be."""

from hypothesis import given
from hypothesis import strategies as st

from routing.decision.seam import Held, carried, tokens_per_event, whole

counts = st.integers(0, 5_000)


@given(counts, counts, st.integers(1, 2_000), st.integers(0, 2_000), counts, counts, counts)
def test_whatever_is_reported_stays_within_the_hold(
    prompt: int,
    output: int,
    events: int,
    rest_events: int,
    held_input: int,
    held_output: int,
    choice: int,
) -> None:
    held = Held(held_input, held_output, choice)
    found = whole(prompt, output, events=events, rest_events=rest_events, held=held)
    assert 0 <= found.input_tokens <= held_input
    assert 0 <= found.output_tokens <= held_output
    assert found.input_tokens + found.output_tokens <= prompt + output
    assert 0 <= found.carried_tokens <= prompt


@given(
    st.integers(1, 500), st.integers(1, 300), st.integers(1, 300), st.integers(1, 8),
    st.booleans(),
)  # fmt: skip
def test_events_of_equal_size_are_counted_to_the_token(
    prompt: int, events: int, rest_events: int, size: int, ends_by_itself: bool
) -> None:
    """Engines of one pool stream alike: so many tokens an event, and one that ends the answer."""
    first, rest = events * size, rest_events * size + 1
    if not ends_by_itself and size == 1:
        rest -= 1  # stopped at its bound: no token without text
    held = Held(prompt * 2, (first + rest) * 2, (first + rest) * 2)
    found = whole(prompt + first, rest, events=events, rest_events=rest_events, held=held)
    assert (found.input_tokens, found.output_tokens) == (prompt, first + rest)
    assert found.carried_tokens == first


@given(st.integers(1, 500), st.floats(1, 16), st.integers(1, 4_000))
def test_what_an_engine_sent_is_no_more_than_it_was_told(
    events: int, per_event: float, choice: int
) -> None:
    found = carried(events, per_event, choice)
    assert events <= found <= max(events, choice)


def test_an_answer_that_used_up_its_bound_has_no_room_for_more_in_its_first_part() -> None:
    # Some events of the rest had two tokens, none of the first part had: 1,500 in all, as told.
    held = Held(100, 1_500, 1_500)
    found = whole(17 + 200, 1_300, events=200, rest_events=1_270, held=held)
    assert found == (17, 1_500, 200)


def test_nothing_streamed_says_nothing_of_an_events_size() -> None:
    assert tokens_per_event(50, 0) == 1.0
    assert tokens_per_event(0, 9) == 1.0
