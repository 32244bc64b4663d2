"""Where a request stops for hooks on its way: before it holds anything, and with a whole answer."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from routing.contracts.hooks import HookPoint
from routing.decision.types import Refusal
from routing.gateway.dialects.usage import Usage
from routing.gateway.exchange import Exchange, Step
from routing.gateway.hooks.keeper import uses_at
from routing.gateway.hooks.payloads import of_answer, of_request
from routing.gateway.relay import Relay

if TYPE_CHECKING:
    from routing.gateway.walk import Walk


def look_before(walk: "Walk", exchange: Exchange, go_on: Callable[[], object]) -> bool:
    """Whether hooks look at a request first; `go_on` when they pass it.

    It holds nothing yet: one that they refuse costs nothing on any limit.
    """
    uses = uses_at(exchange, HookPoint.BEFORE)
    if not uses:
        return False

    def judged(refusal: Refusal | None) -> None:
        exchange.is_judged = False
        if exchange.is_gone:
            walk.ends.left_early(exchange)
        elif refusal is not None:
            walk.ends.refuse(exchange, refusal)
        else:
            go_on()

    exchange.is_judged = True
    walk.live.add(exchange)
    walk.hooks.judge(exchange, uses, of_request(exchange), judged)
    return True


def look_after(
    walk: "Walk", exchange: Exchange, relay: Relay, body: bytes, usage: Usage | None
) -> bool:
    """Whether hooks look at a whole answer first; its end follows from what they say."""
    if not exchange.operation.generates:
        return False
    # A stream that was asked for and not given is seen by the hooks of streams too.
    points = (HookPoint.AFTER, HookPoint.STREAM)[: 2 if exchange.call.is_stream else 1]
    uses = uses_at(exchange, *points)
    if not uses:
        return False

    def judged(refusal: Refusal | None) -> None:
        exchange.is_judged = False
        if exchange.step is Step.ENDED:
            return  # cut at the drain limit
        if refusal is not None:
            walk.ends.withhold(exchange, relay, refusal, body, usage)
        else:
            walk.ends.answered(exchange, relay, body, usage)

    exchange.is_judged = True
    walk.hooks.judge(exchange, uses, of_answer(exchange, body), judged)
    return True
