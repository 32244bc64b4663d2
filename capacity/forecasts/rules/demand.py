"""From forecast bands and seen sizes to the demand that replicas are planned for.

Work grows with the square of a prompt, so means are not enough: requests are put into bins of half
an octave of input and of output, and each bin is a demand of its own (decision-core, section 2).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from math import log2

from capacity.simulation.closed_forms import Demand

MINUTE = timedelta(minutes=1)
MEASURED_MINUTES = 15
BINS_PER_OCTAVE = 2
BINS_MAX = 400  # 20 octaves of input and of output, two bins each, filled sparsely


@dataclass(frozen=True, slots=True)
class Seen:
    """Requests of about one size: how many, and the sums of their tokens."""

    requests: int
    input_tokens: int
    cached_tokens: int
    output_tokens: int


@dataclass(frozen=True, slots=True)
class Rates:
    """A whole model's demand in an hour, as sums."""

    requests: float
    input_tokens: float
    output_tokens: float


def measured(
    minutes: Mapping[datetime, tuple[int, int, int]], now: datetime, *, is_new: bool
) -> tuple[Rates, int] | None:
    """Demand an hour, from sums of whole minutes, and over how many: `MEASURED_MINUTES` at most.

    `is_new`: nothing came before the first of `minutes`. Then only those after it count, for it
    began somewhere inside and what came before it is no lull. None: not one whole minute yet.
    """
    until = now.replace(second=0, microsecond=0)
    since = until - MEASURED_MINUTES * MINUTE
    if is_new and minutes:
        since = max(since, min(minutes) + MINUTE)
    count = (until - since) // MINUTE
    if count < 1:
        return None
    inside = [sums for at, sums in minutes.items() if since <= at < until]
    return Rates(*(sum(sums[at] for sums in inside) * 60 / count for at in range(3))), count


def binned(rows: Iterable[tuple[int, int, int]]) -> list[Seen]:
    """Bins of `(input, cached, output)` tokens of single requests, fullest first, at most
    `BINS_MAX`: what lies beyond joins the last bin, so that sums stay whole.
    """
    sums: dict[tuple[int, int], list[int]] = {}
    for given, cached, output in rows:
        cell = sums.setdefault((_bin(given), _bin(output)), [0, 0, 0, 0])
        for at, amount in enumerate((1, given, min(cached, given), output)):
            cell[at] += amount
    ranked = sorted(sums.values(), key=lambda cell: -cell[0])
    kept = ranked[:BINS_MAX]
    for extra in ranked[BINS_MAX:]:
        kept[-1] = [a + b for a, b in zip(kept[-1], extra, strict=True)]
    return [Seen(*cell) for cell in kept]


def demands_of(seen: Sequence[Seen], planned: Rates) -> list[Demand]:
    """The seen sizes at the rate that brings the planned requests and tokens.

    Requests and tokens are forecast apart and need not fit the seen sizes. The rate follows from
    the requests, then each size is stretched so that the token sums are the planned ones too.
    Without seen sizes: one demand of the mean size.
    """
    requests = sum(bin_.requests for bin_ in seen)
    if planned.requests <= 0:
        return []
    if not requests:
        return [
            Demand(
                planned.requests / 3600,
                planned.input_tokens / planned.requests,
                planned.output_tokens / planned.requests,
            )
        ]
    scale = planned.requests / requests
    longer_in = _factor(planned.input_tokens, scale * sum(bin_.input_tokens for bin_ in seen))
    longer_out = _factor(planned.output_tokens, scale * sum(bin_.output_tokens for bin_ in seen))
    return [
        Demand(
            rate_rps=bin_.requests * scale / 3600,
            input_tokens=bin_.input_tokens / bin_.requests * longer_in,
            output_tokens=bin_.output_tokens / bin_.requests * longer_out,
            cached_ratio=bin_.cached_tokens / bin_.input_tokens if bin_.input_tokens else 0.0,
        )
        for bin_ in seen
    ]


def _factor(planned: float, seen: float) -> float:
    return planned / seen if seen > 0 and planned > 0 else 1.0


def _bin(tokens: int) -> int:
    return int(log2(max(tokens, 1)) * BINS_PER_OCTAVE)
