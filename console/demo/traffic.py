"""Bounded replay of a trace through a gateway, at the trace's own arrival times.

Open loop: a request leaves when the trace says so, whether or not earlier ones have been answered,
up to `MAX_IN_FLIGHT` (beyond it the arrival is dropped and counted, so that a stuck gateway cannot
fill our memory). Nothing is ever sent back to back to catch up.
"""

import asyncio
import contextlib
import csv
import hashlib
import json
import math
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from console.demo.client import Answer, GatewayAddress, stream_chat

TRACE = Path(__file__).parent / "data" / "azure2023_conv_10min.csv"
MAX_IN_FLIGHT = 200
REQUEST_TIMEOUT_S = 120.0
BYTES_PER_TOKEN = 4  # the bundled engine's pieces; other tokenizers come out near it
NOISY_PHASE_S = 120.0
NOISY_FACTOR = 6
NOISY_MAX_INPUT_TOKENS = 12_000
SESSIONS = 24
TASK_STEPS = 4  # calls of one task
FAILED_ONE_IN = 5  # tasks that report failure
SYSTEM_PROMPT_TOKENS = 128
_WORDS = [
    "capacity",
    "latency",
    "tenant",
    "budget",
    "prefill",
    "decode",
    "region",
    "replica",
    "window",
    "token",
    "cache",
    "ledger",
    "queue",
    "stream",
    "policy",
    "limit",
    "router",
    "engine",
    "batch",
    "prompt",
]


@dataclass(frozen=True, slots=True)
class Arrival:
    """One row of a trace: seconds from its start, and token counts."""

    t_s: float
    input_tokens: int
    output_tokens: int


@dataclass(frozen=True, slots=True)
class Caller:
    """Who sends a share of the arrivals. A noisy one multiplies its prompts every other phase."""

    name: str
    secret: str
    model: str
    is_noisy: bool = False


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one replayed request came to, in the client's own clock:

    `ttft_s` from send to first text.
    """

    caller: str
    started_at: float
    status: int
    ttft_s: float | None
    total_s: float
    input_tokens: int | None
    output_tokens: int | None
    request_id: str
    error: str


def read_trace(path: Path = TRACE) -> list[Arrival]:
    """Rows of a trace file with columns `t_s,input_tokens,output_tokens`, in order of arrival.

    Raises `OSError`, or `ValueError` saying what is wrong with the file, and in which line.
    """
    rows: list[Arrival] = []
    with path.open(newline="", encoding="utf-8") as lines:
        reader = csv.DictReader(lines)
        try:
            rows.extend(_arrival(row) for row in reader)
        except (KeyError, TypeError, ValueError, csv.Error) as error:
            said = "t_s, input_tokens and output_tokens as numbers from 0 on"
            raise ValueError(f"line {reader.line_num} does not say {said}") from error
    return sorted(rows, key=lambda row: row.t_s)


def _arrival(row: dict[str, str]) -> Arrival:
    found = Arrival(float(row["t_s"]), int(row["input_tokens"]), int(row["output_tokens"]))
    if not math.isfinite(found.t_s) or min(found.t_s, found.input_tokens, found.output_tokens) < 0:
        raise ValueError("out of range")
    return found


def looped(rows: list[Arrival], keep_one_in: int = 1) -> Iterator[Arrival]:
    """Replay the rows again and again; of `keep_one_in` consecutive rows one is kept, in place."""
    span_s = rows[-1].t_s + 1.0
    offset_s = 0.0
    while True:
        for index, row in enumerate(rows):
            if index % keep_one_in == 0:
                yield Arrival(row.t_s + offset_s, row.input_tokens, row.output_tokens)
        offset_s += span_s


def prompt_of(tokens: int, seed: int) -> str:
    """Text of about `tokens` tokens; one seed always begins alike, so that prefixes can hit."""
    need = max(8, tokens * BYTES_PER_TOKEN)
    parts: list[str] = []
    size = 0
    step = 0
    while size < need:
        word = _WORDS[
            hashlib.blake2b(f"{seed}:{step}".encode(), digest_size=2).digest()[0] % len(_WORDS)
        ]
        parts.append(word)
        size += len(word) + 1
        step += 1
    return " ".join(parts)[:need]


def body_of(caller: Caller, arrival: Arrival, index: int) -> dict[str, object]:
    """A chat body with the arrival's shape; noisy callers send longer prompts in odd phases."""
    tokens = arrival.input_tokens
    if caller.is_noisy and int(arrival.t_s / NOISY_PHASE_S) % 2 == 1:
        tokens = min(NOISY_MAX_INPUT_TOKENS, tokens * NOISY_FACTOR)
    session = index % SESSIONS
    return {
        "model": caller.model,
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_tokens": max(1, arrival.output_tokens),
        "messages": [
            {"role": "system", "content": prompt_of(SYSTEM_PROMPT_TOKENS, seed=0)},
            {"role": "user", "content": prompt_of(tokens - SYSTEM_PROMPT_TOKENS, seed=1 + session)},
        ],
    }


def task_headers(prefix: str, call: int) -> dict[str, str]:
    """Headers of a caller's `call`-th request: tasks of `TASK_STEPS` calls, each with its end."""
    number, step = divmod(call, TASK_STEPS)
    headers = {
        "x-headrace-task-id": f"{prefix}-{number}",
        "x-headrace-task-kind": ("triage", "summary", "research")[number % 3],
        "x-headrace-step": f"{step + 1}/{TASK_STEPS}",
    }
    if step == TASK_STEPS - 1:
        has_failed = number % FAILED_ONE_IN == FAILED_ONE_IN - 1
        headers["x-headrace-task-outcome"] = "failure" if has_failed else "success"
    return headers


class Replay:
    """Runs arrivals against one gateway until stopped or the trace ends."""

    def __init__(
        self,
        gateway: GatewayAddress,
        callers: list[Caller],
        record: Callable[[Outcome], None] = lambda outcome: None,
    ) -> None:
        self._gateway = gateway
        self._callers = callers
        self._record = record
        self._in_flight: set[asyncio.Task[None]] = set()
        self._run = f"{int(time.time()):x}"  # a restarted replay names other tasks
        self.sent = 0
        self.dropped = 0

    async def run(self, arrivals: Iterable[Arrival], stop: asyncio.Event) -> None:
        """Send each arrival at its time; ends with the last answer, or after `stop` is set."""
        begin = time.monotonic()
        for index, arrival in enumerate(arrivals):
            wait_s = begin + arrival.t_s - time.monotonic()
            if wait_s > 0:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(stop.wait(), wait_s)
            if stop.is_set():
                break
            if len(self._in_flight) >= MAX_IN_FLIGHT:
                self.dropped += 1
                continue
            self.sent += 1
            task = asyncio.create_task(self._one(index, arrival))
            self._in_flight.add(task)
            task.add_done_callback(self._in_flight.discard)
        if self._in_flight:
            await asyncio.wait(self._in_flight, timeout=REQUEST_TIMEOUT_S)

    async def _one(self, index: int, arrival: Arrival) -> None:
        caller = self._callers[index % len(self._callers)]
        headers = {
            "x-headrace-session-id": f"{caller.name}-{index % SESSIONS}",
            **task_headers(f"{caller.name}-{self._run}", index // len(self._callers)),
        }
        started_at = time.time()
        begin = time.monotonic()
        try:
            answer = await asyncio.wait_for(
                stream_chat(self._gateway, caller.secret, body_of(caller, arrival, index), headers),
                REQUEST_TIMEOUT_S,
            )
        except (OSError, TimeoutError, EOFError) as error:
            answer = Answer(status=0, error=type(error).__name__)
        self._record(
            Outcome(
                caller=caller.name,
                started_at=started_at,
                status=answer.status,
                ttft_s=answer.first_text_at - begin if answer.first_text_at else None,
                total_s=time.monotonic() - begin,
                input_tokens=answer.input_tokens,
                output_tokens=answer.output_tokens,
                request_id=answer.request_id,
                error=answer.error,
            )
        )


def json_line(outcome: Outcome) -> str:
    """One outcome as a JSON line."""
    return json.dumps(asdict(outcome))
