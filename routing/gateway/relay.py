"""One try on one endpoint: send, watch three deadlines, pass bytes through, end exactly once.

Nothing reaches the caller before the first output token, so until then a failure may be answered
elsewhere; after it, a failure becomes a typed event and nothing is ever replayed.
"""

import time
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from routing.decision.breaker import Outcome
from routing.decision.deadlines import Passed
from routing.decision.retry import Kind, Verdict, judge, judge_unreached
from routing.decision.types import Reason, Refusal
from routing.gateway.delivery import deliver, last_bytes
from routing.gateway.exchange import Exchange, Step
from routing.gateway.fleet import Endpoint
from routing.gateway.flow import Flow
from routing.gateway.gathered import Gathered, judged
from routing.gateway.http1 import ResponseReader
from routing.gateway.sse import Fault, SseScanner
from routing.gateway.stats import SliceName
from routing.gateway.upstream import UpstreamConnection, request_id_of
from routing.gateway.verdicts import of_deadline, of_stream, overdue
from routing.gateway.workflow import out_of_time

if TYPE_CHECKING:
    from routing.gateway.walk import Walk

_SSE = b"text/event-stream"


class Relay:
    """State of the try. Owned by its exchange; the connection calls `received` and `lost`."""

    __slots__ = (
        "_connection",
        "_first_s",
        "_gathered",
        "_head_seen",
        "_is_over",
        "_is_sent",
        "_others",
        "_scanner",
        "_slice",
        "_started_s",
        "_walk",
        "endpoint",
        "exchange",
        "flow",
        "tokens",
    )

    def __init__(self, walk: "Walk", exchange: Exchange, endpoint: Endpoint) -> None:
        self._walk = walk
        self.exchange = exchange
        self.endpoint = endpoint
        self.tokens = 0
        self._others = 0
        self._connection: UpstreamConnection | None = None
        self._scanner: SseScanner | None = None
        self._head_seen = False
        self._is_over = False
        self._is_sent = False
        self._started_s = time.monotonic()
        self._first_s = self._started_s
        self.flow = Flow(self._started_s)
        self._gathered = Gathered()
        names = (exchange.tenant.id, exchange.model_name, endpoint.pool.id, exchange.class_name)
        self._slice: SliceName = names

    @property
    def is_sent(self) -> bool:
        """Whether the endpoint has been given the request."""
        return self._is_sent

    @property
    def usage_payloads(self) -> tuple[bytes, bytes]:
        """The stream's last event with usage, and the one with what was known before the output."""
        scanner = self._scanner
        return (scanner.usage, scanner.opening) if scanner is not None else (b"", b"")

    # -- sending

    def start(self, head: bytes, body: bytes) -> None:
        """Send over a kept connection, or dial one."""
        self.endpoint.began(self.exchange.estimate.amounts.kv_tokens)
        connections = self.endpoint.connections
        connection = connections.get(self._started_s)
        if connection is not None:
            self._send(connection, head, body)
        elif connections.is_full:
            self._fail(judge(503, "", None, is_draining=False))
        else:
            self._walk.spawn(self._dial(head, body))

    async def _dial(self, head: bytes, body: bytes) -> None:
        try:
            connection = await self.endpoint.connections.dial()
        except OSError:
            self._fail(judge_unreached())
            return
        if self._is_over:
            self.endpoint.connections.put(connection, time.monotonic())
        else:
            self._send(connection, head, body)

    def _send(self, connection: UpstreamConnection, head: bytes, body: bytes) -> None:
        self._connection = connection
        self._is_sent = True
        self.flow.begin(connection.transport)
        connection.send(self, head, body)

    # -- called by the connection

    def received(self) -> None:
        """More of the response has come."""
        connection = self._connection
        if connection is None or self._is_over:
            return
        reader = connection.reader
        if not self._head_seen and (not reader.head_done or not self._read_head(reader)):
            return
        piece, scanner = reader.take(), self._scanner
        if scanner is not None:
            self._pass_on(scanner, piece, is_done=reader.is_done)
        else:
            self._collect(reader, piece, is_done=reader.is_done)

    def lost(self) -> None:
        """The connection ended first. Without a length, that is the end of the body."""
        connection = self._connection
        if self._is_over or connection is None:
            return
        reader = connection.reader
        if self._head_seen and not reader.is_framed:
            if self._scanner is None:
                self._collect(reader, b"", is_done=True)
                return
            if self._scanner.is_complete:
                self._pass_on(self._scanner, b"", is_done=True)
                return
        if self._scanner is not None and self._scanner.has_done:
            self._pass_on(self._scanner, b"", is_done=True)
            return
        self._broke("The upstream's connection was lost")

    def _read_head(self, reader: ResponseReader) -> bool:
        self._head_seen = True
        self.exchange.upstream_id = request_id_of(reader)
        if reader.headers.get(b"content-encoding", b"identity").lower() != b"identity":
            self._fail(judge(502, "", None, is_draining=False))
            return False
        is_events = reader.headers.get(b"content-type", b"").lower().startswith(_SSE)
        if reader.status == 200 and is_events and self.exchange.call.is_stream:
            self._scanner = SseScanner(
                keep_usage=self.exchange.call.include_usage,
                look=self.exchange.operation.look,
                is_rest=self.exchange.carried_tokens > 0,
                holds_end=self.exchange.wants_cost,
            )
        return True

    # -- a stream

    def _pass_on(self, scanner: SseScanner, piece: bytes, *, is_done: bool) -> None:
        out = scanner.feed(piece)
        if is_done:
            out += scanner.close()
        sent, tokens = self.exchange.sent, scanner.tokens
        if sent is not None and sent.tokens and out:
            out = sent.joined(out, tokens)
        if tokens != self.tokens:
            self._count(tokens)
        elif scanner.others != self._others:
            self._others = scanner.others  # the end of an answer is no silence either
            self.flow.last_s = time.monotonic()
        if scanner.fault is not None:
            self._write(out)
            self._faulted(scanner)
        elif not is_done:
            if out:
                self._write(out)
        elif scanner.is_complete:
            self._completed(out)
        else:
            self._write(out)
            self._broke("The upstream ended the stream early")

    def _count(self, tokens: int) -> None:
        now_s = time.monotonic()
        flow, before = self.flow, self.tokens
        if before:
            self._walk.stats.tokens_came(self._slice, now_s - flow.last_s, tokens - before)
        else:
            self._began(now_s)
        flow.last_s = now_s
        self.tokens = tokens
        exchange = self.exchange
        if exchange.hold is not None:
            exchange.hold.out_so_far = exchange.carried_tokens + tokens if exchange.sent else tokens

    def _began(self, now_s: float) -> None:
        """The try's first output is here."""
        exchange, stats = self.exchange, self._walk.stats
        self._first_s = now_s
        if exchange.carried_tokens:
            return
        exchange.first_token_s = now_s
        stats.first_token(self._slice, now_s - exchange.arrived_s)
        stats.try_answered(
            self.endpoint.candidate.id,
            now_s - self._started_s,
            exchange.estimate.amounts.input_tokens,
        )

    def _write(self, out: bytes) -> None:
        if not out:
            return
        if self.exchange.watch is not None:
            self.exchange.watch.feed(self, out)
        else:
            deliver(self.exchange, out, self._walk.now_ms)

    def deliver(self, out: bytes) -> None:
        """Send events that hooks have passed to the caller."""
        deliver(self.exchange, out, self._walk.now_ms)

    def _completed(self, out: bytes) -> None:
        self._release(Outcome.SUCCESS)
        if self.exchange.watch is None:
            self._finish(out)
            return
        if out:
            self.exchange.watch.feed(self, out)
        self.exchange.watch.when_clear(partial(self._finish, b""))

    def _finish(self, out: bytes) -> None:
        exchange = self.exchange
        if self._scanner is not None and exchange.wants_cost:
            out += self._walk.ends.cost_event(exchange, self) + self._scanner.ending
        data = last_bytes(exchange, out, self._walk.now_ms)
        self._walk.ends.stream_done(exchange, self, data)

    def _faulted(self, scanner: SseScanner) -> None:
        if scanner.fault is Fault.TOO_LONG:
            self._broke("The upstream sent an event without an end")
            return
        is_draining = self.endpoint.candidate.is_draining
        verdict = of_stream(scanner, has_output=bool(self.tokens), is_draining=is_draining)
        if self.exchange.step is Step.RELAYING:
            refusal = verdict.refusal
            words = self._with_count(refusal.message.rstrip("."))
            is_lost = verdict.kind is not Kind.CALLER
            self._cut(replace(refusal, message=words), is_lost=is_lost)
        else:
            self._fail(verdict)

    # -- a whole answer

    def _collect(self, reader: ResponseReader, piece: bytes, *, is_done: bool) -> None:
        if not self._gathered.add(piece, reader.status):
            self._fail(judge(502, "", None, is_draining=False))
            return
        if not is_done:
            return
        if reader.status == 200 and self.exchange.step is Step.RELAYING:
            self._broke("The upstream did not go on with the stream")
            return
        body = self._gathered.body()
        found = judged(
            body,
            reader,
            self.exchange.operation,
            now_s=self._walk.now_ms() / 1000,
            is_draining=self.endpoint.candidate.is_draining,
        )
        if isinstance(found, Verdict):
            self._fail(found)
        else:
            self._release(Outcome.SUCCESS)
            self._walk.answered(self.exchange, self, body, found)

    # -- the three deadlines, and a reader that does not read

    def check(self, now_s: float) -> None:
        """Act on a deadline that has passed."""
        if self._is_over:
            return
        if self.flow.is_stalled(now_s):
            self.exchange.client.abort()
            return
        if self.exchange.task_ends_s <= now_s:
            self._out_of_time()
            return
        silent_s = self.flow.silent_s(now_s) if self.tokens else None
        found = overdue(self.exchange, now_s, self._started_s, silent_s)
        if found is not None:
            self._late(found)

    def _late(self, found: Passed) -> None:
        if self.is_whole:
            self.end_whole()
            return
        verdict = of_deadline(self.exchange, found, self._with_count(found.message))
        if self.exchange.step is Step.RELAYING:
            self._cut(verdict.refusal, is_lost=verdict.kind is Kind.LOST)
        else:
            self._fail(verdict, Outcome.HUNG)

    def _out_of_time(self) -> None:
        """Its task's time has ended: the caller's own bound, no fault of a replica."""
        if self.is_whole:
            self.end_whole()
            return
        exchange = self.exchange
        refusal = out_of_time(exchange, exchange.carried_tokens + self.tokens)
        if exchange.step is Step.RELAYING:
            exchange.refusal = refusal  # its shape names the cap
            self._cut(refusal, is_lost=False)
            return
        self._release(None)
        if self._is_sent:
            self._walk.ends.withhold(exchange, self, refusal)
        else:
            self._walk.ends.give_up(exchange, refusal)

    def pause(self) -> None:
        """The client reads too slowly."""
        self.flow.pause()

    def resume(self) -> None:
        """The client has caught up."""
        self.flow.resume()

    # -- ends

    @property
    def is_whole(self) -> bool:
        """Whether all of a stream was passed on: only the upstream's framing is still to end."""
        return not self._is_over and self._scanner is not None and self._scanner.has_done

    def end_whole(self) -> None:
        """Do not wait for that framing: clients that have read `[DONE]` close at once."""
        self._completed(b"")

    def cancel(self) -> None:
        """The client is gone: so is the upstream's reason to go on."""
        if not self._is_over:
            self._release(None)

    def _broke(self, message: str) -> None:
        refusal = Refusal(Reason.UPSTREAM_ERROR, self._with_count(message))
        if self.exchange.step is Step.RELAYING:
            self._cut(refusal)
        else:
            self._fail(Verdict(Kind.LOST, refusal))

    def _with_count(self, message: str) -> str:
        tokens = self.exchange.carried_tokens + self.tokens
        return f"{message} after {tokens} output tokens." if tokens else f"{message}."

    def _cut(self, refusal: Refusal, *, is_lost: bool = True) -> None:
        """Output was sent: the stream goes on elsewhere, or a typed event ends it.

        `is_lost`: the replica was at fault, not the request or its own time.
        """
        outcome = None
        if is_lost:
            is_late = refusal.reason is Reason.UPSTREAM_TIMEOUT
            outcome = Outcome.HUNG if is_late else Outcome.FAILURE
        self._release(outcome)
        then = partial(self._cut_off, refusal, is_lost=is_lost)
        if self.exchange.watch is None:
            then()
        else:
            self.exchange.watch.when_clear(then)

    def _cut_off(self, refusal: Refusal, *, is_lost: bool) -> None:
        if not is_lost or not self._walk.tries.goes_on(self.exchange, self, refusal):
            self._walk.ends.stream_cut(self.exchange, self, refusal)

    def stopped(self, refusal: Refusal) -> None:
        """A hook ends the stream: what it has not passed is never sent, the engine's work stops."""
        if not self._is_over:
            self._release(None)
        if self.exchange.step is Step.RELAYING:
            self._walk.ends.stream_cut(self.exchange, self, refusal)
        else:
            self._walk.ends.withhold(self.exchange, self, refusal)

    def _fail(self, verdict: Verdict, outcome: Outcome = Outcome.FAILURE) -> None:
        """No output was sent: the walk decides whether to try elsewhere."""
        if self._is_over:
            return
        self._release(outcome if verdict.counts else None)
        if self.exchange.watch is not None:
            self.exchange.watch.reset()
        self._walk.tries.failed(self.exchange, self, verdict)

    def _release(self, outcome: Outcome | None) -> None:
        self._is_over = True
        now_s = time.monotonic()
        self.endpoint.ended(self.exchange.estimate.amounts.kv_tokens)
        if outcome is not None:
            was_answered = self._head_seen and self._connection is not None
            model = self.exchange.model_name
            self._walk.fleet.judge(model, self.endpoint, outcome, now_s, was_answered=was_answered)
            has_failed = outcome is not Outcome.SUCCESS
            self._walk.stats.try_ended(self.endpoint.candidate.id, has_failed=has_failed)
        self.flow.end()
        if self.tokens and not self.flow.was_paused:
            self.endpoint.pace.ended(self.tokens, self.flow.last_s - self._first_s, now_s)
        connection, self._connection = self._connection, None
        if connection is None:
            return
        if connection.reader.is_done and connection.handler is self:
            connection.release(now_s)
        else:
            connection.abort()
