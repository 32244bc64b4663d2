"""How a request ends: usage, ledger row, shape row, counts, and the last bytes to its caller.

Whatever the walk began ends here, once: answered, cut off, cancelled, given up after a reservation
or refused before one.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from routing.contracts.enums import RequestStatus, UsageSource
from routing.decision.retry import RetryBudgets
from routing.decision.seam import tokens_per_event
from routing.decision.types import Refusal
from routing.gateway.account import Accountant
from routing.gateway.calibration import Calibration
from routing.gateway.credits import Credits
from routing.gateway.dialects.usage import Usage, read_usage
from routing.gateway.exchange import Exchange, Step
from routing.gateway.http1 import LAST_CHUNK, chunk
from routing.gateway.once import Vault
from routing.gateway.record import (
    NO_USAGE,
    End,
    counted,
    shape_row,
    spend_of,
    usage_event,
    with_carried,
)
from routing.gateway.refusal import error_event, status_of
from routing.gateway.relay import Relay
from routing.gateway.repeat import sealed_answer
from routing.gateway.reply import (
    answer,
    cost_event,
    identity_headers,
    rate_headers,
    refusal_answer,
)
from routing.gateway.returns import Returns
from routing.gateway.stats import Stats

_CANCELLED_STATUS = 499  # as logs of other gateways have it; never sent


@dataclass(slots=True)
class Ends:
    """The ends and what they need; `live` are the requests that hold something."""

    accountant: Accountant
    stats: Stats
    credits: Credits
    budgets: RetryBudgets
    calibration: Calibration
    vault: Vault
    returns: Returns
    live: set[Exchange]
    now_ms: Callable[[], int]

    # -- what the relay found

    def answered(self, exchange: Exchange, relay: Relay, body: bytes, usage: Usage | None) -> None:
        """A whole answer has come; `usage` as it states it."""
        usage, source = _usage_in(exchange, body, usage)
        spend = spend_of(exchange, usage)
        rates = rate_headers(exchange, self.now_ms())
        keep_alive = exchange.request.keep_alive
        data = answer(exchange, rates, spend, body, keep_alive=keep_alive)
        if exchange.recording is not None:
            exchange.recording.feed(body)
        self._succeeded(exchange, relay)
        finish = partial(self.finish, exchange, data, keep_alive=keep_alive)
        if exchange.is_gone:  # while hooks looked at it
            status, code = RequestStatus.CANCELLED, "client_closed"
            self._account(exchange, status, usage, source, _CANCELLED_STATUS, code)
        else:
            self._account(exchange, RequestStatus.OK, usage, source, 200, done=finish)

    def withhold(
        self,
        exchange: Exchange,
        relay: Relay,
        refusal: Refusal,
        body: bytes = b"",
        usage: Usage | None = None,
    ) -> None:
        """Nothing of an answer was sent, and nothing will be: refused, and charged.

        A hook keeps it back, or its task's time has ended. `body` and `usage` are those of a whole
        answer.
        """
        if body:
            usage, source = _usage_in(exchange, body, usage)
        else:
            usage, source = self._usage_of(exchange, relay)
        if body or relay.tokens:
            self._succeeded(exchange, relay)
        if exchange.recording is not None:
            exchange.recording.drop()  # charged, with no answer to give again
        self._refuse_held(exchange, refusal, usage, source, is_void=False)

    def cost_event(self, exchange: Exchange, relay: Relay) -> bytes:
        """What a stream costs, and the policy that served it, as an event in the caller's shape."""
        usage, _ = self._usage_of(exchange, relay)
        return cost_event(exchange, spend_of(exchange, usage))

    def stream_done(self, exchange: Exchange, relay: Relay, data: bytes) -> None:
        """A stream ended as it should; `data` are its last bytes."""
        usage, source = self._usage_of(exchange, relay)
        if source is UsageSource.REPORTED:
            relay.endpoint.tokens_per_event = tokens_per_event(usage.output_tokens, relay.tokens)
        self._succeeded(exchange, relay)
        keep_alive = exchange.request.keep_alive and not exchange.request.is_http10
        finish = partial(self.finish, exchange, data, keep_alive=keep_alive)
        self._account(exchange, RequestStatus.OK, usage, source, 200, done=finish)

    def stream_cut(self, exchange: Exchange, relay: Relay | None, refusal: Refusal) -> None:
        """Output was sent, then it failed: a typed event, no `[DONE]`.

        The body ends well framed, so the connection goes on: a client that pools connections would
        lose its next call to one that is being closed. `relay` is None when the stream was to go on
        at another replica and nobody took it.
        """
        usage, source = self._usage_of(exchange, relay)
        event = error_event(refusal, exchange.operation.style, exchange.request_id)
        if exchange.recording is not None:
            exchange.recording.feed(event)
        data = event if exchange.request.is_http10 else chunk(event) + LAST_CHUNK
        keep_alive = exchange.request.keep_alive and not exchange.request.is_http10
        finish = partial(self.finish, exchange, data, keep_alive=keep_alive)
        status = RequestStatus.INCOMPLETE
        self._account(exchange, status, usage, source, 200, refusal.reason, done=finish)

    def client_gone(self, exchange: Exchange) -> None:
        """The caller has left: close the upstream at once, charge what was used."""
        exchange.is_gone = True
        if exchange.is_judged:
            return  # who judges it ends it, within the hooks' deadlines
        relay = exchange.attempt
        if isinstance(relay, Relay) and relay.is_whole:
            relay.end_whole()
            return
        if exchange.recording is not None:
            exchange.recording.drop()  # nobody has the rest: the call is charged, and spent
        if exchange.hold is None or exchange.step is Step.ENDED:
            return  # `_reserved` will void it, or it is over
        self.account_cancelled(exchange)

    # -- account

    def _usage_of(self, exchange: Exchange, relay: Relay | None) -> tuple[Usage, UsageSource]:
        payload, opening = relay.usage_payloads if relay is not None else (b"", b"")
        usage = read_usage(payload, exchange.operation.usage, opening) if payload else None
        carried, tokens = exchange.carried_tokens, relay.tokens if relay is not None else 0
        if usage is not None:
            if carried and exchange.sent is not None:
                return with_carried(usage, exchange.sent, tokens), UsageSource.COUNTED
            return usage, UsageSource.REPORTED
        if carried:  # of the lost part only events are known
            tokens = min(carried + tokens, exchange.estimate.amounts.output_tokens)
        return counted(exchange, tokens), UsageSource.COUNTED

    def _succeeded(self, exchange: Exchange, relay: Relay) -> None:
        self.budgets.succeeded(relay.endpoint.pool.id, exchange.tenant.id)
        if exchange.hold is not None and exchange.hold.has_gauge_limit:
            took_s = time.monotonic() - exchange.arrived_s
            self.returns.promises.ended(exchange.tenant.id, took_s)

    def account_cancelled(self, exchange: Exchange) -> None:
        """Its caller left after the reservation: charge what the upstream was asked for so far."""
        relay = exchange.attempt
        usage, source = NO_USAGE, UsageSource.COUNTED
        is_void = True
        if isinstance(relay, Relay):
            relay.cancel()
        else:
            relay = None
        if exchange.carried_tokens or (relay is not None and relay.is_sent):
            usage, source = self._usage_of(exchange, relay)
            is_void = False
        status = RequestStatus.CANCELLED
        self._account(
            exchange, status, usage, source, _CANCELLED_STATUS, "client_closed", is_void=is_void
        )

    def _account(
        self,
        exchange: Exchange,
        status: RequestStatus,
        usage: Usage,
        source: UsageSource,
        http_status: int,
        code: str = "",
        *,
        is_void: bool = False,
        done: Callable[[], None] | None = None,
    ) -> None:
        """End the reservation, once: ledger row, shape row, counts.

        `done` runs at once, except that a void waits for its record and an idempotency key for its.
        """
        exchange.step = Step.ENDED
        exchange.attempt = None
        self.live.discard(exchange)
        ended_ms = exchange.millis(time.monotonic())
        end = End(status, usage, source, ended_ms, http_status, code)
        event = usage_event(exchange, end)
        if exchange.credits:
            self.credits.end(
                exchange.credits, usage.input_tokens, usage.output_tokens, is_void=is_void
            )
        if exchange.hold is not None:
            if is_void:
                if exchange.recording is not None:
                    exchange.recording.drop()
                self.accountant.void(exchange.hold, event=event, done=done)
            else:
                sealed = sealed_answer(self.vault, exchange)
                self.accountant.end(exchange.hold, event, answer=sealed, done=done)
        cancelled_ms = ended_ms if status is RequestStatus.CANCELLED else None
        outcome = f"refused:{event.error_code}" if event.is_refused else status
        self.accountant.shape(shape_row(exchange, end, outcome, cancelled_ms))
        self.stats.ended(event, exchange.skeleton.model)
        self.calibration.observe(exchange.call.ask, event)
        if exchange.trace is not None:
            exchange.trace.ended(exchange, event)

    @staticmethod
    def finish(exchange: Exchange, data: bytes, *, keep_alive: bool) -> None:
        """Send the last bytes, if there is still somebody."""
        if not exchange.is_gone:
            exchange.client.finish(data, keep_alive=keep_alive)

    # -- refusals

    def give_up(self, exchange: Exchange, refusal: Refusal) -> None:
        """Refuse after a reservation. What no upstream took on is void; a lost request is a row."""
        is_void = not exchange.was_lost
        self._refuse_held(exchange, refusal, NO_USAGE, UsageSource.COUNTED, is_void=is_void)

    def _refuse_held(
        self,
        exchange: Exchange,
        refusal: Refusal,
        usage: Usage,
        source: UsageSource,
        *,
        is_void: bool,
    ) -> None:
        exchange.refusal = refusal
        self.stats.refused(refusal.reason)
        self._account(
            exchange,
            RequestStatus.FAILED,
            usage,
            source,
            status_of(refusal),
            refusal.reason,
            is_void=is_void,
            done=lambda: self.answer_refusal(exchange, refusal),
        )

    def left_early(self, exchange: Exchange) -> None:
        """Its caller left before anything was held: a shape row is all that is left."""
        exchange.step = Step.ENDED
        self.live.discard(exchange)
        ended_ms = exchange.millis(time.monotonic())
        status = RequestStatus.CANCELLED
        end = End(status, NO_USAGE, UsageSource.COUNTED, ended_ms, _CANCELLED_STATUS)
        self.accountant.shape(shape_row(exchange, end, status, ended_ms))

    def refuse(self, exchange: Exchange, refusal: Refusal) -> None:
        """Refuse without a reservation: a shape row and a count are all that is left."""
        exchange.step = Step.ENDED
        exchange.refusal = refusal
        self.live.discard(exchange)
        class_name = exchange.class_name or exchange.tenant.default_class.value
        self.stats.refused(
            refusal.reason,
            (exchange.tenant.id, exchange.model_name, "", class_name),
            exchange.input_tokens,
        )
        if exchange.has_call:
            ended_ms = exchange.millis(time.monotonic())
            status = status_of(refusal)
            end = End(RequestStatus.FAILED, NO_USAGE, UsageSource.COUNTED, ended_ms, status)
            outcome = f"refused:{refusal.reason.value}"
            self.accountant.shape(shape_row(exchange, end, outcome, None))
        self.answer_refusal(exchange, refusal)
        if exchange.trace is not None:
            exchange.trace.ended(exchange)

    def refuse_plainly(self, exchange: Exchange, refusal: Refusal) -> None:
        """Refuse what is no model call: a count is all that is left."""
        self.stats.refused(refusal.reason)
        self.answer_refusal(exchange, refusal)

    def answer_refusal(self, exchange: Exchange, refusal: Refusal) -> None:
        """Send the refusal, if there is still somebody; nothing is counted."""
        if exchange.is_gone:
            return
        keep_alive = exchange.request.keep_alive
        rates = rate_headers(exchange, self.now_ms(), refusal.standing)
        headers = identity_headers(exchange) + rates
        style = exchange.operation.style
        data = refusal_answer(
            refusal, headers, keep_alive=keep_alive, style=style, request_id=exchange.request_id
        )
        exchange.client.finish(data, keep_alive=keep_alive)


def _usage_in(exchange: Exchange, body: bytes, usage: Usage | None) -> tuple[Usage, UsageSource]:
    """Usage of a whole answer: as it states it, else by its bytes."""
    if usage is not None:
        return usage, UsageSource.REPORTED
    return counted(exchange, _tokens_in(body, exchange)), UsageSource.COUNTED


def _tokens_in(body: bytes, exchange: Exchange) -> int:
    """Output of a whole answer without usage: bytes over bytes per token, within the hold."""
    estimated = -int(-len(body) // exchange.model.bytes_per_token)
    return min(estimated, exchange.estimate.amounts.output_tokens)
