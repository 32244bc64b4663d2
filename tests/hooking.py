"""Hooks of a test: a guard on sockets, a package of Python hooks, a gateway that asks both."""

import dataclasses
import hmac
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

import httpx
import msgspec
import redis

from routing.contracts.enums import Dimension, LimitScope, WindowKind
from routing.contracts.hooks import HookEntry, HookKind, HookPoint, HookUse
from routing.contracts.process import GatewayStatus
from routing.contracts.sealing import hook_purpose, seal
from routing.contracts.snapshot import Limit, Snapshot
from routing.contracts.usage import ShapeRow, UsageEvent
from tests.gatewaying import ACME, body_of
from tests.stack import (
    ACME_KEY,
    PEPPER,
    GatewayProcess,
    held,
    make_snapshot,
    policy,
    publish,
    shape_rows,
    start_gateway,
    usage_events,
    wait_until,
)
from tests.upstream import Script, Seen, UpstreamThread, json_script

WIDE = (Limit(LimitScope.TENANT, Dimension.REQUESTS, WindowKind.DAY, 100_000),)
LONG = 15.0  # a busy machine's time for what takes milliseconds
SECRET = "the-secret-of-the-guard-of-tests"
MODULE = """
import threading

def refuse_word(call):
    return "no such words" if "forbidden" in str(call["request"]) else None

def hang(call):
    threading.Event().wait()

def fail(call):
    raise ValueError(f"the prompt was {call}")

def unsure(call):
    return True

async def wait(call):
    return None if call["tenant"] == "acme" else "who?"

not_a_function = 3
"""
NAMES = ("refuse_word", "hang", "fail", "unsure", "wait", "not_a_function")


def install(folder: Path) -> str:
    """A distribution with hooks, as pip leaves it in a folder of the path; that folder."""
    (folder / "guards_of_tests.py").write_text(MODULE)
    facts = folder / "guards_of_tests-1.0.dist-info"
    facts.mkdir(parents=True)
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: guards-of-tests\nVersion: 1.0\n")
    points = "".join(f"{name} = guards_of_tests:{name}\n" for name in NAMES)
    (facts / "entry_points.txt").write_text(
        f"[headrace.hooks]\n{points}broken = no_such_module:x\n"
    )
    return str(folder)


def webhook(name: str, address: tuple[str, int], secret: str = SECRET, **changes: Any) -> HookEntry:
    """A hook at an address, without TLS."""
    sealed = seal(PEPPER.encode(), hook_purpose(name), secret, b"0123456789ab")
    fields: dict[str, Any] = {"path": "/check?v=1", "has_tls": False, "sealed_secret": sealed}
    return HookEntry(name, HookKind.WEBHOOK, *address, **fields | changes)


def python(name: str, entry_point: str) -> HookEntry:
    """A hook of the package that `install` made."""
    return HookEntry(name, HookKind.PYTHON, entry_point=entry_point)


def use(name: str, at: str = "before", *, ms: int = 5000, fails_open: bool = False) -> HookUse:
    """A line of the policy; generous unless said."""
    return HookUse(name, HookPoint(at), ms / 1000, fails_open)


def said(verdict: str, reason: str = "") -> Script:
    """A guard's answer."""
    return json_script({"verdict": verdict, "reason": reason})


def signed(seen: Seen, secret: str = SECRET) -> bool:
    """Whether a call is signed with the secret: a receiver's own few lines."""
    timestamp = seen.header("x-headrace-timestamp") or ""
    body = f"v1.{timestamp}.".encode() + seen.body
    expected = "v1=" + hmac.new(secret.encode(), body, sha256).hexdigest()
    return hmac.compare_digest(expected, seen.header("x-headrace-signature") or "")


def if_text(word: str) -> Callable[[Seen], Script]:
    """A guard that refuses a stream whose text has the word, also where it came in two pieces."""

    def choose(seen: Seen) -> Script:
        whole = "".join(one["before"] + one["text"] for one in json.loads(seen.body)["choices"])
        return said("refuse", "not that word") if word in whole else said("pass")

    return choose


@dataclasses.dataclass
class Gate:
    """A gateway before an engine, and a guard that its hooks ask."""

    gateway: GatewayProcess
    engine: UpstreamThread
    guard: UpstreamThread
    store: "redis.Redis[bytes]"
    snapshot: Snapshot

    def ask(self, *uses: HookUse, **entries: HookEntry) -> None:
        """Publish a policy with these hooks, and wait until it is in force."""
        hooks = {use.hook: webhook(use.hook, self.guard.address) for use in uses}
        hooks |= {entry.name: entry for entry in entries.values()}
        self.snapshot = msgspec.structs.replace(
            self.snapshot,
            number=self.snapshot.number + 1,
            policy=policy(hooks=uses),
            hooks=hooks,
        )
        publish(self.store, self.snapshot)
        number = self.snapshot.number
        wait_until(lambda: self.status().snapshot_number == number, LONG, "the new policy")
        self.engine.requests.clear()
        self.guard.requests.clear()
        self.guard.choose = None

    def status(self) -> GatewayStatus:
        """What it says of itself now."""
        found = httpx.get(f"{self.gateway.admin_url}/status", trust_env=False).content
        return msgspec.json.decode(found, type=GatewayStatus)

    def post(self, path: str = "/v1/chat/completions", **body: Any) -> httpx.Response:
        """A call of acme's."""
        headers = {"authorization": f"Bearer {ACME_KEY}"}
        url = f"{self.gateway.url}{path}"
        return httpx.post(url, json=body_of(**body), headers=headers, trust_env=False, timeout=30)

    def row(self, response: httpx.Response) -> UsageEvent:
        """The call's ledger row, once it is settled."""
        name = response.headers["x-request-id"]

        def found() -> list[UsageEvent]:
            events = [event for _, event in usage_events(self.store, ACME)]
            return [event for event in events if event.request_id == name]

        wait_until(lambda: bool(found()) and held(self.store, ACME) == 0, LONG, "its row")
        (row,) = found()
        return row

    def shape(self, response: httpx.Response) -> ShapeRow:
        """The call's shape row."""
        name = response.headers["x-request-id"]
        wait_until(lambda: any(one.request_id == name for one in shape_rows(self.store)), LONG, "")
        return next(one for one in shape_rows(self.store) if one.request_id == name)

    def metric(self, line: str) -> float:
        """Value of one line of the metrics page, 0 when it is not there."""
        page = httpx.get(f"{self.gateway.admin_url}/metrics", trust_env=False).text
        return next(
            (float(x.rsplit(" ", 1)[1]) for x in page.splitlines() if x.startswith(line)), 0
        )


@contextmanager
def opened_gate(folder: Path) -> Iterator[Gate]:
    """A gate on the emptied store of the tests; `folder` holds its state and its package."""
    url = os.environ["REDIS_URL"]
    env = {"HEADRACE_PRIVATE_HOOKS": "127.0.0.1", "PYTHONPATH": install(folder)}
    with redis.Redis.from_url(url) as store, UpstreamThread() as engine, UpstreamThread() as guard:
        store.flushall()
        snapshot = make_snapshot([engine.address], limits=WIDE)
        with start_gateway(snapshot, url, folder / "state", **env) as gateway:
            yield Gate(gateway, engine, guard, store, snapshot)
            gateway.process.kill()
            gateway.process.wait(10)
