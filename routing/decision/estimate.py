"""What a request may use at most: input tokens from bytes, bounded output, spend at full price."""

from typing import NamedTuple

import msgspec

from routing.contracts.pricing import hold_nanousd
from routing.contracts.snapshot import Price
from routing.decision.types import Amounts, Reason, Refusal

# A tokenizer packs at most about this many bytes of real text into a token. Only a prompt that
# cannot fit even so is refused here; one that might fit is left to the engine, which counts.
MOST_BYTES_PER_TOKEN = 8.0
LEAST_BYTES_PER_TOKEN = 1.0  # byte-level tokenizers never need more than a token a byte
# What a chat template adds by itself, before small prompts have shown it: Llama 3.1 has 30 tokens
# with its dates, Qwen 2.5 20, gpt-oss 90.
TEMPLATE_TOKENS = 128
MESSAGE_TOKENS = 4  # around each message, beside what its JSON has: ChatML and Llama add 5 in all
# What a template, or a provider, says of tools beyond their own bytes: open models up to 250,
# Anthropic up to 530.
TOOLS_TOKENS = 544
_ROOM_SHARE = 16  # of the context: least output granted when the estimate leaves no room


class Ask(msgspec.Struct, frozen=True, gc=False):
    """What a request states about its own size.

    `input_bytes` excludes embedded pictures: `images` counts them, `picture_tokens` bounds what
    they become. `input_tokens` are given as token ids; `choices` is how many outputs run at once
    (n x prompts); `output_tokens` is the caller's own bound a choice, None when it gave none.
    `dense_bytes` are those of `input_bytes` whose text is not mostly letters and spaces: a token
    holds few of them. `field` names the member that holds the prompt; `frame_tokens` is the most
    that the engine adds to its prompts by itself; `fits_context`: no prompt is longer than the
    context. `is_templated`: a chat template adds more, `Rates.template_tokens`. No `choices`: there
    is no output at all.
    """

    input_bytes: int
    images: int = 0
    input_tokens: int = 0
    choices: int = 1
    output_tokens: int | None = None
    prompts: int = 1
    picture_tokens: int = 0
    dense_bytes: int = 0
    field: str = "messages"
    frame_tokens: int = 0
    fits_context: bool = True
    is_templated: bool = False


class Estimate(msgspec.Struct, frozen=True, gc=False):
    """`amounts` to hold, and the output bound of one choice that the engine must be told."""

    amounts: Amounts
    choice_output_tokens: int


class Rates(NamedTuple):
    """Bytes per token of a model: of plain text, and of dense text (`Ask.dense_bytes`).

    `is_unseen`: no engine has reported on it yet, so `plain` is what its operator says.
    `template_tokens`: what its chat template adds to a prompt at most.
    """

    plain: float
    dense: float = 1.0
    is_unseen: bool = False
    template_tokens: int = TEMPLATE_TOKENS


def input_tokens(ask: Ask, rates: Rates, context_tokens: int) -> int:
    """Upper estimate of prompt tokens: `ceil(bytes / rate)`, ids, pictures, frames, template.

    No engine takes a prompt that is longer than the context. Of a model that nobody has seen count,
    text is a token a byte: its tokenizer may know no words at all.
    """
    dense = ask.dense_bytes
    plain = ask.input_bytes - dense
    rate = LEAST_BYTES_PER_TOKEN if rates.is_unseen else rates.plain
    text = -int(-plain // rate) - int(-dense // rates.dense)
    tokens = text + ask.input_tokens + ask.picture_tokens + ask.frame_tokens
    if ask.is_templated:
        tokens += rates.template_tokens
    return min(tokens, context_tokens * ask.prompts) if ask.fits_context else tokens


def estimate(
    ask: Ask, price: Price, *, rates: Rates, context_tokens: int, output_cap_tokens: int
) -> Estimate | Refusal:
    """Bounds of a request, or why it cannot fit the model.

    Without a bound of the caller the output is limited to the room that the estimate leaves, so
    that prompt and bound together never exceed the context; with one, to the room that the least
    possible prompt leaves. It is never cut to what a budget can pay: that is refused. Cached input
    is held at full price.
    """
    # Of several prompts the longest has at least the mean.
    least_tokens = int(ask.input_bytes / MOST_BYTES_PER_TOKEN) + ask.input_tokens
    least_tokens = -(-least_tokens // ask.prompts)
    if ask.fits_context and least_tokens >= context_tokens:
        return Refusal(
            Reason.INVALID_REQUEST,
            f"The prompt is too long: at least {least_tokens} tokens, "
            f"the model's context holds {context_tokens}.",
            param=ask.field,
        )
    tokens = input_tokens(ask, rates, context_tokens)
    if ask.output_tokens is None:
        likely = tokens  # not the worst case: a new model's first answers would be cut short by it
        if rates.is_unseen:
            likely = input_tokens(ask, rates._replace(is_unseen=False), context_tokens)
        room = max(context_tokens - likely, context_tokens // _ROOM_SHARE)
        bound = min(output_cap_tokens, room)
    else:
        bound = min(ask.output_tokens, output_cap_tokens, context_tokens - least_tokens)
    output = bound * ask.choices
    spend = hold_nanousd(price, tokens, output, ask.images)
    return Estimate(Amounts(tokens, output, spend, tokens + output), bound)
