"""Nothing that a caller wrote, and no key, is kept anywhere: marked calls, then a search for marks.

Everything that a running Headrace writes is read afterwards: all files of its state (logs,
journals, the servers' own files), every row of every table, every key and value of the store,
every page of metrics, every error that a caller was told.
"""

import base64
import os
import re
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psycopg
import redis
from psycopg import sql

from routing.contracts.process import decode_gateway_status
from routing.store import keys
from tests.conftest import Stack, processes_of
from tests.stack import wait_until

# Where a key is by design: the demo's credentials, for its own person to read (0600).
KEPT = ("credentials.json",)
PIECE_BYTES = 1 << 20
ANSWER_CHARS = 48  # of an answer's middle: no two answers share so many


class Marks:
    """Texts that are unlike any other, one for each place of a call, and ways they may be spelt."""

    def __init__(self) -> None:
        self.stem = f"mark{uuid.uuid4().hex}x"
        self.places: list[str] = []
        self.needles: dict[bytes, str] = {}
        self.add("a mark", self.stem)

    def of(self, place: str) -> str:
        """A mark for a place."""
        self.places.append(place)
        return f"{self.stem}{len(self.places) - 1:03d}"

    def add(self, what: str, text: str) -> None:
        """A text that must not be found either; in base64 too, wherever that began."""
        raw = text.encode()
        self.needles[raw] = what
        for cut in range(3):
            self.needles[base64.b64encode(raw[cut:])[:-4]] = f"{what} in base64"

    def within(self, data: bytes) -> set[str]:
        """What these bytes hold of it."""
        found = {what for needle, what in self.needles.items() if needle in data}
        if found:
            numbers = re.findall(self.stem.encode() + rb"(\d{3})", data)
            found |= {self.places[int(number)] for number in numbers}
        return found


def asked(marks: Marks, model: str) -> list[tuple[str, dict[str, Any]]]:
    """A call of every operation with text in it, and calls that are refused."""
    said = [
        {"role": "system", "content": marks.of("system prompt")},
        {"role": "user", "content": [{"type": "text", "text": marks.of("prompt part")}]},
    ]
    tool = {"name": "f", "description": marks.of("tool"), "parameters": {"type": "object"}}
    chat = {"model": model, "messages": said, "max_tokens": 60}
    path = "/v1/chat/completions"
    salted = {"cache_salt": marks.of("the caller's salt"), "user": marks.of("user")}
    return [
        (path, chat | salted),
        (path, chat | {"stream": True, "stop": [marks.of("stop")]}),
        (path, chat | {"tools": [{"type": "function", "function": tool}]}),
        ("/v1/completions", {"model": model, "prompt": marks.of("prompt"), "max_tokens": 30}),
        ("/v1/responses", {"model": model, "input": marks.of("input"), "max_output_tokens": 400}),
        ("/v1/messages", {"model": model, "messages": said[1:], "max_tokens": 30}),
        ("/v1/messages/count_tokens", {"model": model, "messages": said[1:]}),
        ("/v1/embeddings", {"model": model, "input": [marks.of("embedded text")]}),
        ("/v1/rerank", {"model": model, "query": marks.of("query"), "documents": ["a"]}),
        ("/tokenize", {"model": model, "prompt": marks.of("tokenized text")}),
        # Refused before, at and after the body is understood.
        (path, chat | {"model": "no-such-model"}),
        (path, chat | {"n": 99}),
        (path, chat | {"max_tokens": marks.of("a number's place")}),
        (path, chat | {"fallbacks": [marks.of("a fallback")]}),
        (path, chat | {"messages": [{"role": "user", "content": marks.of("long") * 40_000}]}),
        (path, {"model": model, "messages": marks.of("no list")}),
    ]


def test_marks_of_calls_and_keys_are_nowhere(stack: Stack) -> None:
    caller = stack.credentials["demo_callers"][0]
    marks = Marks()
    secret, wrong = caller["secret"], marks.of("a wrong key")
    marks.add("the key", secret)
    head = {
        "authorization": f"Bearer {secret}",
        "x-custom": marks.of("a header"),
        "cookie": marks.of("a cookie"),
        "user-agent": marks.of("the agent"),
        "referer": f"http://{marks.of('the referer')}/",
    }
    ids, answers = [], []
    with httpx.Client(base_url=stack.gateway_url, trust_env=False, timeout=60) as client:
        for number, (path, body) in enumerate(asked(marks, caller["model"])):
            own = {"idempotency-key": str(uuid.uuid4())} if number < 2 else {}
            found = client.post(path, json=body, headers=head | own)
            if found.status_code == 200:
                answers.append((path, found))
            else:
                assert not marks.within(found.content), found.text
            ids.append(found.headers["x-request-id"])
        for raw in (f'{{"model": "{marks.of("broken JSON")}', marks.of("no JSON")):
            found = client.post("/v1/chat/completions", content=raw, headers=head)
            assert found.status_code == 400
            assert not marks.within(found.content), found.text
        lines = [{"authorization": f"Bearer {wrong}"}, {"x-api-key": wrong}]
        for line in lines:
            found = client.post("/v1/chat/completions", json={}, headers=line)
            assert found.status_code == 401
            assert not marks.within(found.content), found.text
    assert {path for path, _ in answers} >= {
        *("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"),
        *("/v1/embeddings", "/tokenize"),
    }
    text = answers[0][1].json()["choices"][0]["message"]["content"]
    assert len(text) >= ANSWER_CHARS
    marks.add("an answer", text[len(text) // 2 - ANSWER_CHARS // 2 :][:ANSWER_CHARS])
    served = {found.headers["x-request-id"] for _, found in answers}
    wait_until(lambda: booked(stack, served) == len(served), 30, "every answer in the ledger")
    assert search(stack, marks) == {}


def search(stack: Stack, marks: Marks) -> dict[str, set[str]]:
    """Places that hold a mark, and which.

    The tenants' salts, which tables, store and files must hold, show that the search finds.
    """
    with psycopg.connect(stack.settings["DATABASE_URL"]) as db:
        salts = Marks()
        for (salt,) in db.execute("SELECT cache_salt FROM tenants_tenant").fetchall():
            salts.add("a salt", salt)
    found = files(stack, marks)
    kinds = {"files"} if files(stack, salts) else set()
    for place, data in (*tables(stack), *stored(stack), *pages(stack), *processes(stack)):
        if whose := marks.within(data):
            found[place] = whose
        if salts.within(data):
            kinds.add(place.split(" ")[0])
    assert kinds == {"files", "table", "store"}
    return found


def test_each_tenant_has_a_salt_of_its_own(stack: Stack) -> None:
    with psycopg.connect(stack.settings["DATABASE_URL"]) as db:
        salts = [row[0] for row in db.execute("SELECT cache_salt FROM tenants_tenant").fetchall()]
    assert len(salts) > 1
    assert len(set(salts)) == len(salts)
    assert all(len(salt) >= 16 for salt in salts)


def booked(stack: Stack, request_ids: set[str]) -> int:
    with psycopg.connect(stack.settings["DATABASE_URL"]) as db:
        row = db.execute(
            "SELECT count(*) FROM tenants_usage WHERE request_id::text = ANY(%s)", [[*request_ids]]
        ).fetchone()
    assert row is not None
    return int(row[0])


def tables(stack: Stack) -> Iterator[tuple[str, bytes]]:
    """Each row of each table, as text: the servers' files may hold it compressed."""
    with psycopg.connect(stack.settings["DATABASE_URL"]) as db:
        names = db.execute(
            "SELECT tablename FROM pg_tables WHERE schemaname = 'public' ORDER BY 1"
        ).fetchall()
        assert len(names) > 30
        for (name,) in names:
            with db.cursor(f"all_{name}"[:60]) as cursor:
                cursor.execute(sql.SQL("SELECT t::text FROM {} t").format(sql.Identifier(name)))
                for (row,) in cursor:
                    yield f"table {name}: {row[:200]}", row.encode()


def stored(stack: Stack) -> Iterator[tuple[str, bytes]]:
    """Every key of the store, with all it holds."""
    readers = {
        b"string": lambda s, k: [s.get(k)],
        b"hash": lambda s, k: [part for pair in s.hgetall(k).items() for part in pair],
        b"list": lambda s, k: s.lrange(k, 0, -1),
        b"set": lambda s, k: list(s.smembers(k)),
        b"zset": lambda s, k: s.zrange(k, 0, -1),
        b"stream": lambda s, k: [
            part for _, fields in s.xrange(k) for pair in fields.items() for part in pair
        ],
    }
    with redis.Redis.from_url(stack.settings["REDIS_URL"]) as store:
        for key in store.scan_iter(count=1000):
            kind = store.type(key)
            if kind == b"none":
                continue  # its time was over meanwhile
            parts = readers[kind](store, key)
            yield f"store {key!r}", b"\0".join([key, *(part or b"" for part in parts)])


def pages(stack: Stack) -> Iterator[tuple[str, bytes]]:
    """Metrics of each gateway and engine, with their labels."""
    with redis.Redis.from_url(stack.settings["REDIS_URL"]) as store:
        found = [decode_gateway_status(raw) for raw in store.hvals(keys.GATEWAYS)]
    addresses = [f"127.0.0.1:{one.admin_port}" for one in found]
    addresses += [f"127.0.0.1:{row['port']}" for row in stack.status()["engines"] if row["port"]]
    assert len(addresses) > len(found) > 0
    for address in addresses:
        page = httpx.get(f"http://{address}/metrics", trust_env=False, timeout=10)
        assert page.status_code == 200
        yield f"metrics of {address}", page.content


def processes(stack: Stack) -> Iterator[tuple[str, bytes]]:
    """Arguments, which every user of the machine may read."""
    for pid, words in processes_of(stack.state).items():
        yield f"arguments of {pid}", words.encode()


def files(stack: Stack, marks: Marks) -> dict[str, set[str]]:
    """Files of the state that hold a mark, and whose."""
    found: dict[str, set[str]] = {}
    seen = 0
    for folder, _, names in os.walk(stack.state):
        for name in names:
            path = Path(folder) / name
            if name in KEPT or not path.is_file():
                continue
            seen += 1
            if whose := _within_file(path, marks):
                found[str(path.relative_to(stack.state))] = whose
    assert seen > 100
    return found


def _within_file(path: Path, marks: Marks) -> set[str]:
    longest = max(map(len, marks.needles))
    found: set[str] = set()
    try:
        with path.open("rb") as file:
            rest = b""
            while piece := file.read(PIECE_BYTES):
                found |= marks.within(rest + piece)
                rest = piece[-longest:]
    except FileNotFoundError:  # the servers remove files as they go
        pass
    return found
