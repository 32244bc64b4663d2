"""What a request may use at most: input tokens from bytes, bounded output, spend at full price."""

import msgspec

from routing.contracts.pricing import spend_nanousd
from routing.contracts.snapshot import Price
from routing.decision.types import Amounts, Reason, Refusal

# A tokenizer packs at most about this many bytes of real text into a token. Only a prompt that
# cannot fit even so is refused here; one that might fit is left to the engine, which counts.
MOST_BYTES_PER_TOKEN = 8.0
IMAGE_TOKENS = 2048  # prior for one picture, until a model states its own rule
_ROOM_SHARE = 16  # of the context: least output granted when the estimate leaves no room


class Ask(msgspec.Struct, frozen=True, gc=False):
    """What a request states about its own size.

    `input_bytes` excludes embedded pictures, which `images` counts; `input_tokens` are given as
    token ids; `choices` is how many outputs run at once (n x prompts); `output_tokens` is the
    caller's own bound a choice, None when it gave none.
    """

    input_bytes: int
    images: int = 0
    input_tokens: int = 0
    choices: int = 1
    output_tokens: int | None = None


class Estimate(msgspec.Struct, frozen=True, gc=False):
    """`amounts` to hold, and the output bound of one choice that the engine must be told."""

    amounts: Amounts
    choice_output_tokens: int


def input_tokens(ask: Ask, bytes_per_token: float) -> int:
    """Upper estimate of prompt tokens: `ceil(bytes / bytes_per_token)`, pictures by the prior."""
    text = -int(-ask.input_bytes // bytes_per_token)
    return text + ask.input_tokens + ask.images * IMAGE_TOKENS


def estimate(
    ask: Ask, price: Price, *, bytes_per_token: float, context_tokens: int, output_cap_tokens: int
) -> Estimate | Refusal:
    """Bounds of a request, or why it cannot fit the model.

    Without a bound of the caller the output is limited to the room that the estimate leaves, so
    that prompt and bound together never exceed the context. Cached input is held at full price.
    """
    least_tokens = int(ask.input_bytes / MOST_BYTES_PER_TOKEN) + ask.input_tokens
    if least_tokens >= context_tokens:
        return Refusal(
            Reason.INVALID_REQUEST,
            f"The prompt is too long: at least {least_tokens} tokens, "
            f"the model's context holds {context_tokens}.",
            param="messages",
        )
    tokens = input_tokens(ask, bytes_per_token)
    if ask.output_tokens is None:
        room = max(context_tokens - tokens, context_tokens // _ROOM_SHARE)
        bound = min(output_cap_tokens, room)
    else:
        bound = min(ask.output_tokens, output_cap_tokens, context_tokens)
    output = bound * ask.choices
    spend = spend_nanousd(price, tokens, 0, output)
    return Estimate(Amounts(tokens, output, spend, tokens + output), bound)
