"""After a try that failed: elsewhere, by another model, from the text sent, or no further."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

from routing.contracts.snapshot import PoolEntry
from routing.decision.retry import Kind, Verdict, backoff_s, may_resend
from routing.decision.seam import carried
from routing.decision.types import Reason, Refusal
from routing.gateway.dialects.continuing import rest_of
from routing.gateway.ends import Ends
from routing.gateway.exchange import Exchange, Step
from routing.gateway.fallback import next_stand, turn_to
from routing.gateway.fleet import Fleet
from routing.gateway.overrides import Overrides
from routing.gateway.relay import Relay

Next = Callable[[Exchange, Refusal], None]


@dataclass(slots=True)
class Tries:
    """What follows a try, and what that needs.

    `route` chooses an endpoint and sends, with the answer for when there is none.
    """

    fleet: Fleet
    overrides: Overrides
    ends: Ends
    route: Next

    def failed(self, exchange: Exchange, relay: Relay, verdict: Verdict) -> None:
        """Nothing was sent to the caller: try elsewhere if the policy and the budget allow it."""
        exchange.attempt = None
        if exchange.trace is not None:
            exchange.trace.failed(verdict.refusal.reason.value)
        candidate = relay.endpoint.candidate
        if verdict.pause_s:
            candidate.paused_until_s = time.monotonic() + verdict.pause_s
        if verdict.refusal.reason is Reason.MODEL_UNAVAILABLE:
            self.fleet.unloaded(exchange.model_name, relay.endpoint)
        if verdict.kind in (Kind.LOST, Kind.OVER):
            exchange.was_lost = True
        failures = exchange.snapshot.policy.failures
        if may_resend(
            verdict,
            attempts=exchange.attempts,
            max_attempts=failures.attempts,
            resend_lost=failures.resend_before_output,
        ):
            self._after_pause(exchange, relay.endpoint.pool, verdict, self.route)
        elif next_stand(exchange, verdict.refusal.reason) is not None:
            self._after_pause(exchange, relay.endpoint.pool, verdict, self.without)
        else:
            self.unserved(exchange, verdict.refusal)

    def _after_pause(
        self, exchange: Exchange, pool: PoolEntry, verdict: Verdict, then: Next
    ) -> None:
        """Try again, but not at once; not at all if the request's own time ends before.

        An engine that asked for a pause is left alone itself; a provider asks it of the account.
        """
        failures, now_s = exchange.snapshot.policy.failures, time.monotonic()
        left_s = exchange.deadlines.total_s - (now_s - exchange.arrived_s)
        is_asked = pool.is_hosted and self.fleet.is_only(exchange.model_name, pool.id)
        wait_s = backoff_s(
            exchange.request_id,
            exchange.attempts,
            base_s=failures.backoff_base_s,
            max_s=failures.backoff_max_s,
            hint_s=verdict.pause_s if is_asked else 0.0,
            left_s=min(left_s, exchange.task_ends_s - now_s),
        )
        if wait_s is None:
            self.unserved(exchange, verdict.refusal)
        elif wait_s:
            asyncio.get_running_loop().call_later(wait_s, then, exchange, verdict.refusal)
        else:
            then(exchange, verdict.refusal)

    def without(self, exchange: Exchange, refusal: Refusal) -> None:
        """The model cannot serve it: the next one that may stand in does, or nobody."""
        if exchange.step is Step.ENDED:
            return  # its caller left while it waited
        while (stand := next_stand(exchange, refusal.reason)) is not None:
            exchange.stands = tuple(one for one in exchange.stands if one is not stand)
            turn_to(exchange, stand)
            if self.overrides.refusal(exchange) is None:
                self.route(exchange, refusal)
                return
        self.unserved(exchange, refusal)

    def goes_on(self, exchange: Exchange, relay: Relay, refusal: Refusal) -> bool:
        """A replica was lost in mid-stream: whether another one takes over from the text sent.

        `refusal` is what the caller is told when nobody does after all.
        """
        sent, call = exchange.sent, exchange.call
        if sent is None or exchange.is_gone:
            return False
        most = exchange.estimate.choice_output_tokens
        tokens = sent.tokens + carried(relay.tokens, relay.endpoint.tokens_per_event, most)
        text = sent.text(call) if tokens < most else None
        if text is None or exchange.attempts >= exchange.snapshot.policy.failures.attempts:
            return False
        sent.events += relay.tokens
        sent.tokens = tokens
        exchange.rest = rest_of(call, text)
        exchange.attempt = None
        if exchange.trace is not None:
            exchange.trace.failed(refusal.reason.value)
        self.route(exchange, refusal)
        if relay.flow.is_paused and exchange.attempt is not None:
            exchange.attempt.pause()
        return True

    def unserved(self, exchange: Exchange, refusal: Refusal) -> None:
        """Nobody takes it, or takes it over."""
        if exchange.asked is not None and exchange.stand is not exchange.sent_as:
            turn_to(exchange, exchange.sent_as or exchange.asked)  # the last one was never asked
        if exchange.carried_tokens:
            self.ends.stream_cut(exchange, None, refusal)
        else:
            self.ends.give_up(exchange, refusal)
