"""What a stream used that was lost and went on elsewhere: two parts, of which one reported.

The part that was lost is known by its events only, and an event may carry several tokens. The rest
reports its prompt, in which those tokens are, and its own output. Nobody reports where the caller's
prompt ends: it is told from how many tokens an event of the rest had, and never so that more is
charged than was held.
"""

from typing import NamedTuple


class Held(NamedTuple):
    """Bounds that were held for a request, and told to the engine that was lost (`choice`)."""

    input_tokens: int
    output_tokens: int
    choice_tokens: int


class Whole(NamedTuple):
    """Usage of both parts as one answer, and how many of its output tokens the first part had."""

    input_tokens: int
    output_tokens: int
    carried_tokens: int


def tokens_per_event(tokens: int, events: int) -> float:
    """Tokens that an event of a finished stream carried, at least 1.

    The token that ends an answer is counted by engines but has no text, so no event.
    """
    return max(1.0, (tokens - 1) / events) if events > 0 else 1.0


def carried(events: int, per_event: float, choice_tokens: int) -> int:
    """Output tokens of so many events: one each or more, and no more than the engine was told."""
    return max(events, min(round(events * per_event), choice_tokens))


def whole(
    prompt_tokens: int, output_tokens: int, *, events: int, rest_events: int, held: Held
) -> Whole:
    """Usage of a stream whose first `events` were lost, from what the rest reports.

    Both parts together are taken to have kept to the bound that the request has for an answer. Both
    figures are within what was held, and their sum is never above what was reported: what an engine
    did beyond it is the operator's cost, as the second prefill is.
    """
    most = held.choice_tokens - output_tokens
    first = carried(events, tokens_per_event(output_tokens, rest_events), most)
    first = min(first, prompt_tokens)
    return Whole(
        min(prompt_tokens - first, held.input_tokens),
        min(output_tokens + first, held.output_tokens),
        first,
    )
