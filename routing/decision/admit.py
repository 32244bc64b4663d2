"""May a request enter: all its counters or none, which limit refused, and when to come back.

`admit` states the rule that the store's reserve script carries out; the property tests hold the two
equal. `refusal` turns a denial into words.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from routing.contracts.enums import Dimension, LimitScope, WindowKind
from routing.contracts.spelling import short_usd
from routing.decision.limits import AMOUNT_ORDER, Group, amounts_in_order, limit_name
from routing.decision.types import Amounts, Reason, Refusal

SHORTEST_WAIT_S: Final = 0.001
CONCURRENCY_WAIT_S: Final = 1.0  # when nobody knows how long the running ones still take


class Position(NamedTuple):
    """Where one dimension of one counter stands."""

    used: int = 0
    held: int = 0


class Standing(Protocol):
    """A `Position`, or whatever else keeps both sums of one dimension."""

    @property
    def used(self) -> int:
        """What the window has used."""

    @property
    def held(self) -> int:
        """What running requests hold."""


_NOWHERE: Final = Position()


@dataclass(frozen=True, slots=True)
class Denial:
    """The limit that refused: with several, the one to wait longest for, the first of equals.

    `wait_ms` is the time to the end of its window, 0 for gauges.
    """

    group_index: int
    dimension: Dimension
    used: int
    held: int
    wait_ms: int


@dataclass(frozen=True, slots=True)
class Admission:
    """What remains of each dimension after this request, in group order; -1 where unlimited."""

    left: tuple[int, ...]


def admit(
    groups: Sequence[Group],
    positions: Sequence[Mapping[Dimension, Standing]],
    amounts: Amounts,
    waits_ms: Sequence[int],
) -> Admission | Denial:
    """Admit when every limited dimension has room for its amount.

    `positions[i]` and `waits_ms[i]` (time left in the window, 0 for gauges) belong to `groups[i]`.
    An amount of 0 passes a full or lowered limit: it takes nothing.
    """
    need = dict(zip(AMOUNT_ORDER, amounts_in_order(amounts), strict=True))
    denial: Denial | None = None
    left: list[int] = []
    for index, group in enumerate(groups):
        for dimension, limit in group.dims:
            at: Standing = positions[index].get(dimension, _NOWHERE)
            room = limit - at.used - at.held
            if limit >= 0 and need[dimension] > max(room, 0):
                wait_ms = waits_ms[index]
                if denial is None or wait_ms > denial.wait_ms:
                    denial = Denial(index, dimension, at.used, at.held, wait_ms)
            left.append(room - need[dimension] if limit >= 0 else -1)
    return Admission(tuple(left)) if denial is None else denial


def refusal(
    group: Group, denial: Denial, amounts: Amounts, *, told_s: float | None = None
) -> Refusal:
    """A denial as the caller reads it.

    `told_s` is when this caller is to come back, if it was promised a turn (`decision.returns`). A
    request that is larger than the whole limit gets no `retry_after_s`: waiting cannot help.
    """
    dimension = denial.dimension
    limit = dict(group.dims)[dimension]
    need = dict(zip(AMOUNT_ORDER, amounts_in_order(amounts), strict=True))[dimension]
    name = limit_name(dimension, group.window)
    whose = _owner(group)
    state = (
        f"{whose} has a {name} limit of {_shown(dimension, limit)}; "
        f"{_shown(dimension, denial.used)} used, {_shown(dimension, denial.held)} held by running "
        f"requests, {_shown(dimension, need)} needed."
    )
    reason = _reason(dimension)
    if need > limit:
        advice = "This request alone exceeds it: ask for more"
        if dimension not in (Dimension.REQUESTS, Dimension.CONCURRENCY):
            advice += ", or make it smaller (prompt or max_tokens)"
        return Refusal(reason, f"{state} {advice}.", None, group.scope, name)
    if group.window is WindowKind.NOW:
        wait_s = CONCURRENCY_WAIT_S if told_s is None else told_s
        advice = f"Retry in {math.ceil(wait_s)} s, when running requests have ended."
    else:
        end_s = denial.wait_ms / 1000
        wait_s = end_s if told_s is None else told_s
        advice = f"The window ends in {math.ceil(end_s)} s: retry then, or ask for more."
        if wait_s > end_s:
            advice = (
                f"The next window, in {math.ceil(end_s)} s, is taken by callers who wait already: "
                f"retry in {math.ceil(wait_s)} s, or ask for more."
            )
    retry_after_s = max(wait_s, SHORTEST_WAIT_S)
    return Refusal(reason, f"{state} {advice}", retry_after_s, group.scope, name)


def _reason(dimension: Dimension) -> Reason:
    if dimension is Dimension.SPEND_NANOUSD:
        return Reason.BUDGET_EXCEEDED
    if dimension in (Dimension.CONCURRENCY, Dimension.KV_TOKENS):
        return Reason.CONCURRENCY_LIMITED
    return Reason.RATE_LIMITED


def _owner(group: Group) -> str:
    return {
        LimitScope.TENANT: "The tenant",
        LimitScope.KEY: "This API key",
        LimitScope.TENANT_MODEL: f"The tenant's use of model {group.subject}",
        LimitScope.TENANT_CLASS: f"The tenant's {group.subject} class",
        LimitScope.RESOURCE: f"The tenant's use of resource {group.subject}",
    }[group.scope]


def _shown(dimension: Dimension, amount: int) -> str:
    if dimension is not Dimension.SPEND_NANOUSD:
        return str(amount)
    return short_usd(amount)
