"""Step times of an engine that is only seen from outside: what to ask it, and what follows.

Lone prompts of growing length give the time to the first token: a step over n prompt tokens, and
whatever lies before and behind the engine. Groups of equal answers give the time of a step over B
decodes. All of it is one fit by relative error, with no negative term:

    TTFT = t0 + c*n + e*n*n/2 + overhead        TPOT = t0 + c*B + d*K,  K = B*(prompt + 3/4 answer)

A prompt longer than the engine's token budget takes a `t0` for each of its chunks.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from capacity.simulation.fitting import relative_errors, relative_fit
from capacity.simulation.profiles import StepTimes

PROMPTS: Final = (16, 64, 256, 512, 1024, 2048, 4096)
BATCHES: Final = (1, 2, 4, 8, 16, 32, 64)
SHORT_PROMPT: Final = 32
LONG_PROMPT: Final = 512
ANSWER_TOKENS: Final = 48
PROMPT_REPEATS: Final = 3
POINTS_LEAST: Final = 6


class TooLittleError(ValueError):
    """Too few measurements to tell the terms apart."""


@dataclass(frozen=True, slots=True)
class Ask:
    """`batch` requests at once, each with unique prompts of about so many tokens."""

    batch: int
    prompt_tokens: int
    output_tokens: int


@dataclass(frozen=True, slots=True)
class Sample:
    """One request of an ask as it was served.

    `tpot_s` is the gap between tokens of its second half, None when there are too few.
    """

    batch: int
    prompt_tokens: int
    output_tokens: int
    ttft_s: float
    tpot_s: float | None


@dataclass(frozen=True, slots=True)
class Found:
    """What the samples say: `overhead_s` a request beside its steps, errors of the fit."""

    times: StepTimes
    overhead_s: float
    error_ratio: float
    points: int


def plan(*, context_tokens: int, most_batch: int, most_requests: int) -> list[Ask]:
    """What to ask, cheap things first, within the bounds; repeats stand together."""
    longest = context_tokens - ANSWER_TOKENS
    asks = [
        Ask(1, tokens, 1) for tokens in PROMPTS if tokens <= longest for _ in range(PROMPT_REPEATS)
    ]
    for batch in BATCHES:
        if batch <= most_batch:
            asks.append(Ask(batch, SHORT_PROMPT, ANSWER_TOKENS))
            if longest >= LONG_PROMPT:
                asks.append(Ask(batch, LONG_PROMPT, ANSWER_TOKENS))
    kept, requests = [], 0
    for ask in asks:
        if requests + ask.batch <= most_requests:
            kept.append(ask)
            requests += ask.batch
    return kept


def fitted(samples: Sequence[Sample], *, token_budget: int) -> Found:
    """Step times from samples, the median of alike ones. Raises `TooLittleError`."""
    alike: dict[tuple[float, ...], list[float]] = {}
    for one in samples:
        prompt, batch = one.prompt_tokens, one.batch
        if batch == 1:
            chunks = math.ceil(prompt / token_budget)
            row = (float(chunks), float(prompt), 0.0, prompt * prompt / 2, 1.0)
            alike.setdefault(row, []).append(one.ttft_s)
        if one.tpot_s is not None and one.tpot_s > 0:
            context = batch * (prompt + 0.75 * one.output_tokens)
            row = (1.0, float(batch), context, 0.0, 0.0)
            alike.setdefault(row, []).append(one.tpot_s)
    if len(alike) < POINTS_LEAST:
        raise TooLittleError(f"{len(alike)} kinds of measurement: {POINTS_LEAST} are needed")
    rows = list(alike)
    seconds = [statistics.median(values) for values in alike.values()]
    t0_s, c_s, d_s, e_s, overhead_s = found = relative_fit(rows, seconds, is_robust=True)
    errors = relative_errors(rows, seconds, found)
    error = sum(abs(one) for one in errors) / len(errors)
    return Found(StepTimes(t0_s, c_s, d_s, e_s), overhead_s, error, len(rows))
