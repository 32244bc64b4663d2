"""Who is turned away when capacity is short: protected classes, predicted waits, workflow value.

Overload refuses with 503 even inside a caller's limits. Classes come by rank, 0 the highest; a
lower one stops earlier, so that what is left stays with those above it.
"""

import math
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

HIGHEST_CEILING: Final = 1.0
LOWEST_CEILING: Final = 0.7
KV_FULL_RATIO: Final = 0.9
NOT_DRAINING_S: Final = 30.0
JITTER: Final = 0.2


class Pressure(NamedTuple):
    """One replica: how long its queue takes, and how much of its KV is used."""

    queue_s: float
    kv_ratio: float


def saturation(replicas: Sequence[Pressure], target_s: float) -> float:
    """Mean over replicas of `max(queue_s/target_s, kv/0.9)`; infinite without any."""
    if not replicas:
        return math.inf
    return sum(max(one.queue_s / target_s, one.kv_ratio / KV_FULL_RATIO) for one in replicas) / len(
        replicas
    )


def ceiling(rank: int, classes: int) -> float:
    """Saturation up to which a class is admitted: linear from 1.0 (rank 0) to 0.7 (the last)."""
    if classes < 2:
        return HIGHEST_CEILING
    return HIGHEST_CEILING - (HIGHEST_CEILING - LOWEST_CEILING) * rank / (classes - 1)


def is_shed(rank: int, classes: int, pressure: float) -> bool:
    """Whether a class is refused at this saturation."""
    return pressure > ceiling(rank, classes)


def retry_after_s(backlog_s: float, target_s: float, load_ratio: float, draw: float) -> float:
    """When an overload will be over: `(backlog - target)/(1 - arrival/service)`, 0-20% later.

    `load_ratio` is arrival over service, `draw` in [0, 1). 30 s when nothing drains.
    """
    wait_s = NOT_DRAINING_S
    if load_ratio < 1:
        wait_s = min(NOT_DRAINING_S, max(0.0, backlog_s - target_s) / (1 - load_ratio))
    return wait_s * (1 + JITTER * draw)


class Value(NamedTuple):
    """What would be lost with a request: its class, how far its task is, what it has cost.

    `class_value` is higher for higher classes; step `step` of `steps`; `spend_ratio` is the task's
    spend over the median cost of a step.
    """

    request_id: str
    class_value: int
    step: int = 0
    steps: int = 1
    spend_ratio: float = 0.0


def shed_score(value: Value) -> float:
    """`class*1000 + 100*k/n + 10*log10(1 + s/p50)`: the lowest goes first.

    The class decides for any spend below 10^90 median steps.
    """
    progress = min(1.0, value.step / max(1, value.steps))
    return value.class_value * 1000 + 100 * progress + 10 * math.log10(1 + value.spend_ratio)


def first_to_go(values: Iterable[Value], count: int) -> list[Value]:
    """The `count` requests that cost least to lose; equals in the order of their ids."""
    return sorted(values, key=lambda one: (shed_score(one), one.request_id))[:count]
