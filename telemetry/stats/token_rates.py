"""Bytes per token as each model reports them: less than the least, so that a hold bounds usage."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from routing.contracts.estimates import MAX_MODELS, Learnt
from telemetry.stats.sketch import add, count_of, index_of, quantiles, value_of

MARGIN: Final = 0.9  # of the least bytes per token observed: 1% is the sketch's, the rest for texts
MIN_SAMPLES: Final = 50  # below them the prior stands, unless one was dearer
MAX_SAMPLES: Final = 10_000  # then counts are halved: a new tokenizer is learnt within as many
MIN_BYTES: Final = 256  # smaller prompts are mostly the frame around the text
LEAST_RATE: Final = 1.0  # byte-level tokenizers never need more than a token a byte
MOST_RATE: Final = 6.0
DENSE_PRIOR: Final = 1.0


@dataclass(slots=True)
class Tally:
    """Sketches of one model: bytes per token of plain and dense text, and how far holds were.

    `template` holds what prompts of less than `MIN_BYTES` had beyond the fewest tokens of their
    text: what the model's chat template adds.
    """

    plain: dict[int, int] = field(default_factory=dict)
    dense: dict[int, int] = field(default_factory=dict)
    error: dict[int, int] = field(default_factory=dict)
    template: dict[int, int] = field(default_factory=dict)
    count: int = 0

    def observe(
        self,
        plain_bytes: int,
        dense_bytes: int,
        held_tokens: int,
        tokens: int,
        *,
        frame_tokens: int | None = None,
    ) -> None:
        """Count a request that reported its prompt tokens.

        `frame_tokens` is what was held beside text and template; None where no template was used.
        """
        if tokens <= 0 or held_tokens <= 0:
            return
        if self.count >= MAX_SAMPLES:
            self._halve()
        self.count += 1
        _bump(self.error, held_tokens / tokens)
        size = plain_bytes + dense_bytes
        if size < MIN_BYTES and frame_tokens is not None:
            _bump(self.template, max(tokens - frame_tokens - size / MOST_RATE, 1.0))
        if not dense_bytes and plain_bytes >= MIN_BYTES:
            _bump(self.plain, plain_bytes / tokens)
        elif dense_bytes >= MIN_BYTES:
            # The plain part gets as few tokens as can be: what is left is too many, never too few.
            rest = tokens - plain_bytes / MOST_RATE
            if rest > 0:
                _bump(self.dense, dense_bytes / rest)

    def _halve(self) -> None:
        for bins in (self.plain, self.dense, self.error, self.template):
            for index in list(bins):
                bins[index] //= 2
                if not bins[index]:
                    del bins[index]
        self.count = count_of(self.error)


def _bump(bins: dict[int, int], value: float) -> None:
    index = index_of(value)
    bins[index] = bins.get(index, 0) + 1


class Error(NamedTuple):
    """Held input tokens per reported token; None without samples. 1.0 is exact, below is debt."""

    samples: int
    low: float | None  # 5 of 100 requests were held below this
    median: float | None
    high: float | None  # 95 of 100


def rate_of(bins: Mapping[int, int], prior: float) -> float:
    """Bytes per token to estimate with: `MARGIN` below the least that is remembered.

    So every remembered request would have been held for at least what it used. Until there are
    enough samples the rate is not above the prior.
    """
    if not bins:
        return prior
    least = min(max(value_of(min(bins)) * MARGIN, LEAST_RATE), MOST_RATE)
    return least if count_of(bins) >= MIN_SAMPLES else min(least, prior)


def template_of(bins: Mapping[int, int], prior: int) -> int:
    """Tokens that a chat template adds at most: `MARGIN` above the most that is remembered.

    Until there are enough samples not below the prior.
    """
    if not bins:
        return prior
    most = math.ceil(value_of(max(bins)) / MARGIN)
    return most if count_of(bins) >= MIN_SAMPLES else max(most, prior)


def error_of(bins: Mapping[int, int]) -> Error:
    """How far holds were from what was reported."""
    return Error(count_of(bins), *quantiles(bins, (0.05, 0.5, 0.95)))


def merged(parts: Iterable[Learnt]) -> dict[str, Tally]:
    """The sum of what several gateways learnt, by model; at most `MAX_MODELS` of them."""
    found: dict[str, Tally] = {}
    for part in parts:
        if part.model not in found and len(found) >= MAX_MODELS:
            continue
        tally = found.setdefault(part.model, Tally())
        add(tally.plain, part.plain)
        add(tally.dense, part.dense)
        add(tally.error, part.error)
        add(tally.template, part.template)
        tally.count = count_of(tally.error)
    return found


def learnt(tallies: Mapping[str, Tally]) -> list[Learnt]:
    """As gateways tell one another."""
    return [
        Learnt(
            model,
            list(t.plain.items()),
            list(t.dense.items()),
            list(t.error.items()),
            list(t.template.items()),
        )
        for model, t in tallies.items()
    ]
