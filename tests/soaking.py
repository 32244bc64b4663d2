"""Callers that write down every answer, and the check that the ledger says the same.

`Traffic` runs callers of several kinds against a running stack in a thread of its own, through any
fault. `settle_and_check` then waits for quiet and compares, from raw rows and raw keys: each
answer has exactly one row, no row came from nowhere, nothing is held, and rows, rollups, windows
and live counters are equal.
"""

import asyncio
import json
import random
import threading
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import psycopg
import redis

from routing.store.packed import read_counter
from tests.conftest import Stack

ANSWER_S = 150.0  # the longest deadline of a request, and some
THINK_S = 0.15
MAX_READ_BYTES = 1 << 20
QUIET_S = 90.0  # lease 15 s + sweep 5 s, a rebuild, and what was sent last
LOOK_S = 1.5  # between two looks: each reads every row and every counter
OK, PARTIAL, HUNG_UP, LOST = "ok", "partial", "hung up", "lost"


@dataclass(frozen=True, slots=True)
class Caller:
    """One way of calling: which key, streamed or not, and whether it hangs up half-way."""

    tenant: str
    secret: str
    model: str
    is_stream: bool
    hangs_up: bool = False
    max_tokens: int = 16


@dataclass(frozen=True, slots=True)
class Seen:
    """What a caller got. `kind` is one of the above, or `refused <code>`.

    `usage` as its upstream stated it: input, cached of it, output tokens.
    """

    at_s: float
    tenant: str
    kind: str
    status: int
    request_id: str
    took_s: float
    detail: str = ""
    usage: tuple[int, int, int] | None = None


@dataclass
class Traffic:
    """Callers without pause until stopped. Reading `seen` needs no lock: it only grows."""

    url: str
    callers: list[Caller]
    seed: int = 1
    think_s: float = THINK_S
    before: Stack | None = None  # whose rows up to now are not ours
    seen: list[Seen] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._stop = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True)
        parts = urlsplit(self.url)
        self._host, self._port = parts.hostname or "", parts.port or 80
        self.earlier = booked_ids(self.before) if self.before else frozenset[str]()

    def __enter__(self) -> "Traffic":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Let what runs end; no caller is left."""
        self._stop.set()
        self._thread.join(ANSWER_S + 10)
        assert not self._thread.is_alive(), "a caller still waits for its answer"

    def until_served(self, timeout_s: float = 60.0, answers: int = 3) -> None:
        """Wait for some whole answers that begin from now on."""
        since_s = time.monotonic()
        while self.count(since_s) < answers:
            assert time.monotonic() - since_s < timeout_s, (
                f"not served for {timeout_s} s: {self.kinds(since_s)}"
            )
            time.sleep(0.1)

    def count(self, since_s: float = 0.0, kind: str = OK) -> int:
        """Answers of a kind that began after an instant."""
        return sum(1 for one in self.seen if one.kind == kind and one.at_s >= since_s)

    def kinds(self, since_s: float = 0.0, until_s: float = float("inf")) -> Counter[str]:
        """Answers by kind, of those begun in a span."""
        return Counter(one.kind for one in self.seen if since_s <= one.at_s < until_s)

    def slowest_s(self, prefix: str, since_s: float, until_s: float = float("inf")) -> float:
        """Longest wait for an answer whose kind begins so."""
        waits = [
            one.took_s
            for one in self.seen
            if since_s <= one.at_s < until_s and one.kind.startswith(prefix)
        ]
        return max(waits, default=0.0)

    async def _run(self) -> None:
        await asyncio.gather(*(self._call(n, caller) for n, caller in enumerate(self.callers)))

    async def _call(self, number: int, caller: Caller) -> None:
        draw = random.Random(f"{self.seed}:{number}")
        while not self._stop.is_set():
            began_s = time.monotonic()
            got = await self._one(caller, number, draw)
            took_s = time.monotonic() - began_s
            self.seen.append(
                Seen(
                    began_s,
                    caller.tenant,
                    got.kind(caller),
                    got.status,
                    got.request_id,
                    took_s,
                    got.detail(),
                    got.usage(),
                )
            )
            await asyncio.sleep(self.think_s * (0.5 + draw.random()))

    async def _one(self, caller: Caller, number: int, draw: random.Random) -> "_Answer":
        answer = _Answer()
        try:
            async with asyncio.timeout(ANSWER_S):
                hang_up_at = draw.randrange(1, 1500) if caller.hangs_up else None
                await self._exchange(caller, number, answer, hang_up_at)
        except (OSError, TimeoutError) as error:
            answer.error = type(error).__name__
        return answer

    async def _exchange(
        self, caller: Caller, number: int, answer: "_Answer", hang_up_at: int | None
    ) -> None:
        reader, writer = await asyncio.open_connection(self._host, self._port)
        try:
            writer.write(_request(caller, number))
            while piece := await reader.read(65536):
                answer.feed(piece)
                if hang_up_at is not None and len(answer.body) >= hang_up_at:
                    answer.was_left = True
                    return
        finally:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()


def _request(caller: Caller, number: int) -> bytes:
    body = json.dumps(
        {
            "model": caller.model,
            "messages": [{"role": "user", "content": f"caller {number} asks " * 12}],
            "max_tokens": caller.max_tokens,
            "stream": caller.is_stream,
        }
        | ({"stream_options": {"include_usage": True}} if caller.is_stream else {})
    ).encode()
    head = (
        "POST /v1/chat/completions HTTP/1.1\r\nhost: soak\r\nconnection: close\r\n"
        f"authorization: Bearer {caller.secret}\r\ncontent-type: application/json\r\n"
        f"content-length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


class _Answer:
    """Bytes of one answer, as they come."""

    def __init__(self) -> None:
        self.raw = b""
        self.head = b""
        self.body = b""
        self.was_left = False
        self.error = ""

    def feed(self, piece: bytes) -> None:
        self.raw = (self.raw + piece)[:MAX_READ_BYTES]
        self.head, mark, self.body = self.raw.partition(b"\r\n\r\n")
        if not mark:
            self.head = b""

    @property
    def status(self) -> int:
        return int(self.head.split(b" ", 2)[1]) if self.head else 0

    @property
    def request_id(self) -> str:
        return self._header(b"x-request-id")

    def _header(self, name: bytes) -> str:
        for line in self.head.split(b"\r\n")[1:]:
            key, _, value = line.partition(b":")
            if key.strip().lower() == name:
                return value.strip().decode()
        return ""

    def kind(self, caller: Caller) -> str:
        if not self.head:
            return LOST
        if self.status != 200:
            return f"refused {self.status}"
        if self.is_complete(caller):
            return OK
        return HUNG_UP if self.was_left else PARTIAL

    def is_complete(self, caller: Caller) -> bool:
        if caller.is_stream:
            return b"data: [DONE]" in self.body and self.body.endswith(b"0\r\n\r\n")
        return len(self.body) == int(self._header(b"content-length") or -1)

    def usage(self) -> tuple[int, int, int] | None:
        at = self.body.rfind(b'"usage":{')
        if self.status != 200 or at < 0:
            return None
        try:
            text = self.body[at + len(b'"usage":') :].decode(errors="replace")
            found, _ = json.JSONDecoder().raw_decode(text)
        except ValueError:
            return None  # cut inside it
        details = found.get("prompt_tokens_details") or {}
        cached = details.get("cached_tokens") or 0
        return found["prompt_tokens"], cached, found["completion_tokens"]

    def detail(self) -> str:
        return self.error or self.body[-200:].decode(errors="replace")


# -- what must hold afterwards ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Books:
    """What the check compared, for the report."""

    answers: int
    rows: int
    late: int
    spend_nanousd: int
    settled_in_s: float


def settle_and_check(stack: Stack, traffic: Traffic, quiet_s: float = QUIET_S) -> Books:
    """After `traffic.stop()`: wait until the books are closed, then until they agree.

    Raises AssertionError with the differences.
    """
    began_s = time.monotonic()
    while True:
        wrong = differences(stack, traffic)
        if not wrong:
            break
        assert time.monotonic() - began_s < quiet_s, (
            f"not settled within {quiet_s} s: " + "; ".join(wrong) + stack.log_tails(4)
        )
        time.sleep(LOOK_S)
    with psycopg.connect(stack.settings["DATABASE_URL"]) as db:
        rows, spend = _row(db, "SELECT count(*), sum(spend_nanousd) FROM tenants_usage")
        late, late_spend = _row(
            db, "SELECT count(*), coalesce(sum(spend_nanousd), 0) FROM tenants_usageadjustment"
        )
    took_s = time.monotonic() - began_s
    return Books(len(traffic.seen), rows, late, int(spend + late_spend), took_s)


def booked_ids(stack: Stack) -> frozenset[str]:
    """Every request in the ledger now."""
    with psycopg.connect(stack.settings["DATABASE_URL"]) as db:
        rows = db.execute("SELECT request_id::text FROM tenants_usage").fetchall()
    return frozenset(row[0] for row in rows)


def differences(stack: Stack, traffic: Traffic) -> list[str]:
    """Everything that is not as it should be, now; empty when all is well."""
    try:
        with psycopg.connect(stack.settings["DATABASE_URL"], connect_timeout=5) as db:
            wrong = _answers_and_rows(db, traffic) + _sums(db)
            store = redis.Redis.from_url(stack.settings["REDIS_URL"], socket_timeout=5)
            with store:
                wrong += _live(db, store)
    except (psycopg.Error, redis.RedisError) as error:
        return [f"servers: {error}"]
    return wrong


def _answers_and_rows(db: "psycopg.Connection[Any]", traffic: Traffic) -> list[str]:
    """Each 200, whole or cut, has one row; a refusal cost nothing; no row is a stranger's."""
    rows = dict(
        db.execute(
            "SELECT request_id::text, kind FROM tenants_usage u JOIN tenants_tenant t"
            " ON t.id = u.tenant_id WHERE t.slug = ANY(%s)",
            [sorted({caller.tenant for caller in traffic.callers})],
        ).fetchall()
    )
    answered = Counter(one.request_id for one in traffic.seen if one.status == 200)
    refused = {
        one.request_id for one in traffic.seen if one.status in (401, 403, 404, 429) and one.status
    }
    failed = {one.request_id for one in traffic.seen if one.status >= 500}
    lost = sum(1 for one in traffic.seen if one.kind == LOST)
    found = []
    if twice := [i for i, n in answered.items() if n > 1]:
        found.append(f"answered twice under one id: {twice[:3]}")
    if missing := [i for i in answered if i not in rows]:
        found.append(f"{len(missing)} answers without a row: {missing[:3]}")
    if void := [i for i in answered if rows.get(i) == "v"]:
        found.append(f"{len(void)} answers booked as void: {void[:3]}")
    if charged := [i for i in refused if rows.get(i, "v") != "v"]:
        found.append(f"{len(charged)} refusals charged: {charged[:3]}")
    strangers = rows.keys() - answered.keys() - refused - failed - traffic.earlier
    if len(strangers) > lost:
        found.append(f"{len(strangers)} rows nobody asked for, {lost} answers were lost")
    return found


_LINES = (
    "SELECT tenant_id, sum(req)::bigint, sum(inp)::bigint, sum(outp)::bigint, sum(usd)::bigint"
    " FROM (SELECT tenant_id, (kind <> 'v')::int AS req, input_tokens AS inp,"
    "  output_tokens AS outp, spend_nanousd AS usd FROM tenants_usage"
    " UNION ALL SELECT tenant_id, requests, input_tokens, output_tokens, spend_nanousd"
    "  FROM tenants_usageadjustment) AS lines GROUP BY tenant_id"
)
_ROLLUPS = (
    "SELECT tenant_id, sum(requests)::bigint, sum(input_tokens)::bigint,"
    " sum(output_tokens)::bigint, sum(spend_nanousd)::bigint FROM tenants_usagerollup"
    " WHERE grain = %s GROUP BY tenant_id"
)


def _sums(db: "psycopg.Connection[Any]") -> list[str]:
    lines = {row[0]: row[1:] for row in db.execute(_LINES).fetchall() if any(row[1:])}
    found = []
    for grain in "mhd":
        rollups = {r[0]: r[1:] for r in db.execute(_ROLLUPS, [grain]).fetchall() if any(r[1:])}
        if rollups != lines:
            found.append(f"rollups {grain} {rollups} are not the rows {lines}")
    return found


def _live(db: "psycopg.Connection[Any]", store: "redis.Redis") -> list[str]:
    """Counters of the present epochs equal the windows of the ledger; nothing is held."""
    windows = {
        (row[0], row[1]): dict(zip(("req", "in", "out", "usd"), row[2:], strict=True))
        for row in db.execute(
            "SELECT bucket, suffix, requests, input_tokens, output_tokens, spend_nanousd"
            " FROM tenants_windowusage WHERE window_end_at > now() - interval '20 hours'"
        ).fetchall()
    }
    counters: dict[tuple[int, str], dict[str, int]] = {}
    found, closed = [], 0
    for bucket in {key[0] for key in windows}:
        meta = {k.decode(): v.decode() for k, v in store.hgetall(f"{{b{bucket}}}:meta").items()}
        closed += meta.get("state") != "ready"
        prefix = f"{{b{bucket}}}:{meta.get('epoch')}:"
        for name in store.scan_iter(f"{prefix}[wg]:*", count=1000):
            values = read_counter(store.get(name))
            if held := {k: v for k, v in values.items() if k.endswith("_h") and v}:
                found.append(f"held {name.decode()} {held}")
            if name.decode().startswith(f"{prefix}w:"):
                counters[bucket, name.decode().removeprefix(prefix)] = values
        if left := store.zcard(f"{{b{bucket}}}:leases"):
            found.append(f"{left} leases in bucket {bucket}")
    if closed:
        found.append(f"{closed} buckets are not open")
    for key in counters.keys() | windows.keys():
        have = {d: counters.get(key, {}).get(d, 0) for d in ("req", "in", "out", "usd")}
        want = windows.get(key, dict.fromkeys(have, 0))
        if have != want:
            found.append(f"counter {key} says {have}, the ledger {want}")
    return found[:5] + ([f"and {len(found) - 5} more"] if len(found) > 5 else [])


def _row(db: "psycopg.Connection[Any]", sql: str) -> tuple[Any, ...]:
    row = db.execute(sql).fetchone()  # type: ignore[call-overload]
    assert row is not None
    return tuple(row)
