"""Refusals of a reservation, as its caller reads them."""

from dataclasses import replace
from typing import Any, Final

from routing.contracts.enums import Dimension, LimitScope
from routing.decision.admit import Denial, refusal
from routing.decision.limits import AMOUNT_ORDER, amounts_in_order
from routing.decision.types import Reason, Refusal, Standing
from routing.decision.workflow import TaskGroup
from routing.gateway.ask import Ask, Template
from routing.gateway.returns import Returns
from routing.gateway.workflow import task_denial
from routing.store.reservations import (
    NO_DIMENSION,
    NO_GROUP,
    NO_HELD,
    NO_LEFT,
    NO_USED,
    NO_WAIT_MS,
    NOW_MS,
)
from routing.store.uses import USES_MAX

AWAY_RETRY_S: Final = 1.0
USES_RETRY_S: Final = 60.0  # records of uses go one by one, an hour after their ends

MANY_USES: Final = Refusal(
    Reason.RATE_LIMITED,
    f"The tenant has {USES_MAX} uses that run or ended within the hour: settle them, or wait.",
    USES_RETRY_S,
    scope=LimitScope.TENANT,
    limit="resource_uses",
)


def no_capacity(message: str, param: str = "") -> Refusal:
    """The shared limits cannot be asked, or did not answer."""
    return Refusal(Reason.NO_CAPACITY, message, AWAY_RETRY_S, param=param)


def refusal_in_reply(ask: Ask, template: Template, returns: Returns, reply: list[Any]) -> Refusal:
    """What the script's NO says: the limit that is full, and what the caller has left of all."""
    index = reply[NO_GROUP] - 1
    group = template.groups[index]
    dimension = Dimension(reply[NO_DIMENSION].decode())
    standing = _standing(ask, template, reply)
    if isinstance(group, TaskGroup):
        return replace(task_denial(ask, group, dimension, reply), standing=standing)
    denial = Denial(index, dimension, reply[NO_USED], reply[NO_HELD], reply[NO_WAIT_MS])
    told_s = returns.refused(ask.caller, group, denial, ask.amounts, reply[NOW_MS])
    return replace(refusal(group, denial, ask.amounts, told_s=told_s), standing=standing)


def _standing(ask: Ask, template: Template, reply: list[Any]) -> Standing:
    """The script counts what is left as if it had been admitted."""
    amounts = amounts_in_order(ask.amounts)
    taken = [amounts[AMOUNT_ORDER.index(dim)] for group in template.groups for dim, _ in group.dims]
    left = [a + b for a, b in zip(reply[NO_LEFT], taken, strict=True)]
    return Standing(template.rates, left)
