"""Callers of the gateway's soak: calls at a rate, whatever comes back, and what became of each."""

import asyncio
import itertools
import json
import random
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field

from routing.decision.retry import RETRY_BUDGET
from tests.soak.kinds import AWAY, AWAY_WORDS, BURSTS, KINDS, LEAVES, LEFT, OK, PLAIN, spent

ANSWER_S = 120.0  # above the whole deadline of a call
MAX_IN_FLIGHT = 96  # a burst on top still fits the ramp; above it an arrival waits, and is late
CLOSE_RATIO = 0.2  # calls on a connection of their own
TASTE_EVENTS = 2  # after which a caller that leaves is gone
BURST_CALLS = 20
# Finite, as sessions are: what a gateway remembers of prompts must be full before minute five.
PROMPTS = tuple(
    f"Question {n}. " + f"What is known of part {n} of the plan? " * 12 for n in range(300)
)

KEEP_S = 10.0  # a connection unused for longer is not used again: the gateway may be closing it

Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@dataclass(frozen=True, slots=True)
class Seen:
    """One call: its fault, what the caller saw, and the gateway's id of it."""

    fault: str
    outcome: str
    request_id: str
    started_at_s: float  # of the machine's monotonic clock
    ended_at_s: float


@dataclass(slots=True)
class Callers:
    """Calls on all gateways in turn. `seen` only grows."""

    ports: tuple[int, ...]
    secrets: tuple[str, ...]
    draw: random.Random
    fault_ratio: float = 0.06
    seen: list[Seen] = field(default_factory=list)
    late: int = 0
    _idle: dict[int, list[tuple[float, Stream]]] = field(default_factory=dict)
    _numbers: "itertools.count[int]" = field(default_factory=itertools.count)
    _running: set["asyncio.Task[None]"] = field(default_factory=set)

    async def at_rate(self, per_s: float, until_s: float) -> None:
        """Random arrivals at a mean rate until an instant of the monotonic clock."""
        due_s = time.monotonic()
        while (due_s := due_s + self.draw.expovariate(per_s)) < until_s:
            if (wait_s := due_s - time.monotonic()) > 0:
                await asyncio.sleep(wait_s)
            if len(self._running) >= MAX_IN_FLIGHT:
                self.late += 1
                await asyncio.wait(self._running, return_when=asyncio.FIRST_COMPLETED)
                due_s = time.monotonic()
            self.send(self._draw())

    async def at_once(self, width: int, seconds: float) -> float:
        """`width` plain calls at a time for a while; answers a second."""
        before, end_s = len(self.seen), time.monotonic() + seconds

        async def one() -> None:
            while time.monotonic() < end_s:
                await self._call(PLAIN)

        began_s = time.monotonic()
        await asyncio.gather(*(one() for _ in range(width)))
        return (len(self.seen) - before) / (time.monotonic() - began_s)

    def send(self, fault: str) -> None:
        """One call in the background."""
        task = asyncio.create_task(self._call(fault))
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    def one_of_each(self) -> None:
        """So that even a short run has every fault that a call can ask for."""
        for fault, kind in KINDS.items():
            if kind.weight:
                self.send(fault)

    def burst(self) -> None:
        """Many calls at once that every replica refuses."""
        fault = self.draw.choice(BURSTS)
        for _ in range(BURST_CALLS):
            self.send(fault)

    async def quiet(self) -> None:
        """Until every call has ended; then hang up all kept connections."""
        while self._running:
            await asyncio.wait(self._running)
        for kept in self._idle.values():
            for _, (_, writer) in kept:
                writer.close()
            kept.clear()

    def counts(self) -> Counter[str]:
        """Calls by fault."""
        return Counter(one.fault for one in self.seen)

    def _draw(self) -> str:
        if self.draw.random() >= self.fault_ratio:
            return PLAIN
        return self.draw.choices(list(KINDS), [kind.weight for kind in KINDS.values()])[0]

    async def _call(self, fault: str) -> None:
        number = next(self._numbers)
        started_at_s = time.monotonic()
        call = _Call(fault)
        try:
            async with asyncio.timeout(ANSWER_S):
                await self._exchange(call, number)
        except (OSError, TimeoutError, asyncio.IncompleteReadError, ValueError) as error:
            call.outcome = f"broken: {type(error).__name__}"
        ended_at_s = time.monotonic()
        self.seen.append(Seen(fault, call.outcome, call.request_id, started_at_s, ended_at_s))

    async def _exchange(self, call: "_Call", number: int) -> None:
        port = self.ports[number % len(self.ports)]
        is_close = self.draw.random() < CLOSE_RATIO
        found = None if is_close else self._kept(port)
        reader, writer = found or await asyncio.open_connection("127.0.0.1", port)
        keep = False
        try:
            streams = KINDS[call.fault].streams
            is_stream = self.draw.random() < 0.5 if streams is None else streams
            secret = self.secrets[number // len(self.ports) % len(self.secrets)]
            prompt = PROMPTS[self.draw.randrange(len(PROMPTS))]
            writer.write(_request(call.fault, number, prompt, secret, is_stream, is_close))
            keep = await call.read(reader) and not is_close
        finally:
            if keep:
                self._idle.setdefault(port, []).append((time.monotonic(), (reader, writer)))
            else:
                writer.close()
                with suppress(OSError):
                    await writer.wait_closed()

    def _kept(self, port: int) -> Stream | None:
        """The connection that was used last, if it is young enough; older ones are hung up."""
        kept = self._idle.setdefault(port, [])
        now_s = time.monotonic()
        while kept and now_s - kept[0][0] > KEEP_S:
            kept.pop(0)[1][1].close()
        return kept.pop()[1] if kept else None


def _request(
    fault: str, number: int, prompt: str, secret: str, is_stream: bool, is_close: bool
) -> bytes:
    asked = {
        "model": "alpha-8b",
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": 16,
        "user": f"{fault}-{number}",
        "stream": is_stream,
    }
    if is_stream:
        asked["stream_options"] = {"include_usage": True}
    body = json.dumps(asked, separators=(",", ":")).encode()
    head = (
        "POST /v1/chat/completions HTTP/1.1\r\nhost: soak\r\n"
        f"authorization: Bearer {secret}\r\ncontent-type: application/json\r\n"
        f"{'connection: close' if is_close else 'accept: */*'}\r\n"
        f"content-length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


class _Call:
    """Reads one answer and says what it was."""

    __slots__ = ("fault", "outcome", "request_id")

    def __init__(self, fault: str) -> None:
        self.fault = fault
        self.outcome = "no answer"
        self.request_id = ""

    async def read(self, reader: asyncio.StreamReader) -> bool:
        """Whether the connection may be used again."""
        raw = (await reader.readuntil(b"\r\n\r\n")).lower()
        lines = dict(line.partition(b": ")[::2] for line in raw.split(b"\r\n"))
        self.request_id = lines[b"x-request-id"].decode()
        status = int(raw.split(b" ", 2)[1])
        if b"content-length" in lines:
            body = await reader.readexactly(int(lines[b"content-length"]))
            found = json.loads(body)
            is_whole = status == 200 and found["choices"][0]["finish_reason"] == "stop"
            self.outcome = OK if is_whole else _told(status, found["error"])
            if lines.get(b"x-headrace-limit") == RETRY_BUDGET.encode():
                self.outcome = spent(self.outcome)
        elif not await self._stream(reader):
            return False
        return lines.get(b"connection") != b"close"

    async def _stream(self, reader: asyncio.StreamReader) -> bool:
        """To the end of a streamed answer; False when the caller left before."""
        body, events = b"", 0
        while size := int(await reader.readuntil(b"\r\n"), 16):
            body += (await reader.readexactly(size + 2))[:-2]
            events = body.count(b"\n\n")
            if self.fault == LEAVES and events >= TASTE_EVENTS:
                self.outcome = LEFT
                return False
        await reader.readexactly(2)
        last = body.rstrip(b"\n").rpartition(b"\n\n")[2]
        if last == b"data: [DONE]":
            self.outcome = OK
        elif last.startswith(b'data: {"error"'):
            self.outcome = f"error event: {json.loads(last[6:])['error']['code']}"
        else:
            self.outcome = "ended without an end"
        return True


def _told(status: int, error: dict[str, str]) -> str:
    """A refusal in short."""
    return AWAY if error["message"].startswith(AWAY_WORDS) else f"{status} {error['code']}"
