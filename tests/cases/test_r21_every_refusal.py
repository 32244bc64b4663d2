"""R21 for every kind of refusal: what SDKs read to decide whether and when to come back.

Each kind is provoked at a real gateway. `x-should-retry` is always there; a time to wait comes as
`Retry-After` and `retry-after-ms` that agree; the caller's own limits come with `x-ratelimit-*`.
"""

import contextlib
import math
import os
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
import redis

from routing.contracts.capacity import CapacityLimit
from routing.contracts.enums import Dimension, WindowKind, WorkClass
from routing.contracts.hooks import HookPoint, HookUse
from routing.contracts.override import Override, OverrideKind, encode_overrides
from routing.contracts.snapshot import ClassPolicy, TaskCaps
from routing.decision.types import Reason
from routing.store import keys
from routing.store.state import write_overrides
from tests.gatewaying import ACME, body_of, serving
from tests.hooking import webhook
from tests.stack import ACME_KEY, GatewayProcess, api_key, limit, model, policy, pool, tenant
from tests.upstream import Hang, Reset, UpstreamThread, answer, json_script, usage

RATE_NAMES = [
    f"x-ratelimit-{what}-{of}"
    for of in ("requests", "tokens")
    for what in ("limit", "remaining", "reset")
]
WIDE = (
    limit(Dimension.REQUESTS, 1_000, WindowKind.DAY),
    limit(Dimension.INPUT_TOKENS, 10**9, WindowKind.DAY),
)
TENANTS = {
    "acme": WIDE,
    "rate": (*WIDE, limit(Dimension.REQUESTS, 1)),
    "budget": (*WIDE, limit(Dimension.SPEND_NANOUSD, 600_000, WindowKind.DAY)),
    "small": (*WIDE, limit(Dimension.SPEND_NANOUSD, 1, WindowKind.DAY)),
    "monthly": (*WIDE, limit(Dimension.REQUESTS, 1, WindowKind.MONTH)),
    "capped": WIDE,
    "conc": (*WIDE, limit(Dimension.CONCURRENCY, 1, WindowKind.NOW)),
}
FULL = CapacityLimit(Dimension.REQUESTS, 0)
BUSY = CapacityLimit(Dimension.CONCURRENCY, 1)
GUARDED = HookUse("guard", HookPoint.BEFORE, 5.0, fails_open=False, classes=(WorkClass.BATCH,))
LIMITED = {"error": {"message": "slow down", "code": 429}}
NOISE = os.urandom(400_000).hex()


@dataclass
class World:
    """A gateway, and the upstream that its models ask."""

    gateway: GatewayProcess
    upstream: UpstreamThread

    def post(self, path: str = "/v1/chat/completions", **how: Any) -> httpx.Response:
        """A request; `headers` beside the key, `secret`, `raw` or fields of the body."""
        secret = how.pop("secret", ACME_KEY)
        headers = {"authorization": f"Bearer {secret}"} | how.pop("headers", {})
        method, raw = how.pop("method", "POST"), how.pop("raw", None)
        body = {"content": raw} if raw is not None else {"json": body_of(**how)}
        with httpx.Client(timeout=30, trust_env=False) as client:
            return client.request(method, self.gateway.url + path, headers=headers, **body)

    def answering(self, *script: Any, **how: Any) -> httpx.Response:
        """The answer when the upstream does as the script says."""
        self.upstream.plan(*script)
        try:
            return self.post(**how)
        finally:
            self.upstream.plan(json_script())

    def while_one_runs(self, **how: Any) -> httpx.Response:
        """The answer to a second call while the same kind of call is running."""
        self.upstream.plan([Hang()])
        before = len(self.upstream.completions)
        first = threading.Thread(target=self._leave_open, args=(how,))
        first.start()
        end_s = time.monotonic() + 10
        while len(self.upstream.completions) == before:
            assert time.monotonic() < end_s, "the first call reached no upstream"
            time.sleep(0.01)
        try:
            return self.post(**how)
        finally:
            first.join(10)
            self.upstream.plan(json_script())

    def _leave_open(self, how: dict[str, Any]) -> None:
        with contextlib.suppress(httpx.TimeoutException):
            headers = {"authorization": f"Bearer {how.get('secret', ACME_KEY)}"}
            httpx.post(
                f"{self.gateway.url}/v1/chat/completions",
                json=body_of(model=how.get("model", "alpha-8b")),
                headers=headers | how.get("headers", {}),
                timeout=httpx.Timeout(30, read=1.5),
                trust_env=False,
            )


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with redis.Redis.from_url(os.environ["REDIS_URL"]) as client:
        client.flushall()
    secrets = [api_key("acme", ACME_KEY)]
    secrets += [api_key(slug, f"key-of-{slug}") for slug in TENANTS if slug != "acme"]
    secrets.append(api_key("acme", "key-of-few", id="k-few", models=("free-3b",)))
    with UpstreamThread() as upstream:
        limited = msgspec.structs.replace
        pools = {
            "p1": pool("p1", [upstream.address]),
            "none": pool("none", []),
            "hour": pool("hour", [upstream.address]),
            "full": limited(pool("full", [upstream.address]), limits=(FULL,)),
            "busy": limited(pool("busy", [upstream.address]), limits=(BUSY,)),
        }
        models = {
            name: model(name, pools=(where,))
            for name, where in {
                "alpha-8b": "p1", "free-3b": "hour", "lonely": "none", "shut": "full",
                "one": "busy", "paused": "p1", "shedding": "p1",
            }.items()
        }  # fmt: skip
        classes = {c.value: ClassPolicy(1.0, 1.0, 20.0) for c in WorkClass}
        ends_ms = int(time.time() * 1000) + 90_000
        over = [
            Override(1, OverrideKind.PAUSE, ends_ms, "A test.", model="paused"),
            Override(2, OverrideKind.SHED, ends_ms, "A test.", model="shedding"),
            Override(3, OverrideKind.CONTEXT_CAP, ends_ms, "A test.", tenant_id="capped", amount=9),
        ]
        with redis.Redis.from_url(os.environ["REDIS_URL"]) as client:
            write_overrides(client, *encode_overrides(tuple(over)))
        path: Path = tmp_path_factory.mktemp("refusals")
        changes = {
            "tenants": {slug: tenant(slug, limits) for slug, limits in TENANTS.items()},
            "keys": dict(secrets),
            "models": models,
            "pools": pools,
            "policy": policy(classes=classes, workflows=CAPS, hooks=(GUARDED,)),
            "hooks": {"guard": webhook("guard", upstream.address)},
        }
        env = {"HEADRACE_PRIVATE_HOOKS": "127.0.0.1"}
        with serving(path, upstream, env=env, **changes) as gateway:
            yield World(gateway, upstream)


def twice(secret: str, **how: Any) -> Callable[[World], httpx.Response]:
    """The second of two calls of a tenant; the first used 100 tokens of output."""

    def call(world: World) -> httpx.Response:
        script = json_script(answer(used=usage(10, 100)))
        assert world.answering(script, secret=secret, **how).status_code == 200
        return world.post(secret=secret, **how)

    return call


CAPS = {
    "steps": TaskCaps(max_steps=1),
    "spend": TaskCaps(max_spend_nanousd=600_000),
    "time": TaskCaps(max_wall_s=60),
    "loop": TaskCaps(max_repeats=1),
}


def capped(kind: str, *, grows_old: bool = False) -> Callable[[World], httpx.Response]:
    """The second call of a task that may make one."""

    def call(world: World) -> httpx.Response:
        headers = {"x-headrace-task-id": f"t-{kind}", "x-headrace-task-kind": kind}
        script = json_script(answer(used=usage(10, 100)))
        how: dict[str, Any] = {"headers": headers, "max_tokens": 150}
        assert world.answering(script, **how).status_code == 200
        if grows_old:
            name = keys.task_record(ACME, "acme", f"t-{kind}")
            with redis.Redis.from_url(os.environ["REDIS_URL"]) as client:
                client.hset(name, "a", int(client.hget(name, "a") or 0) - 61_000)
        return world.post(**how)

    return call


def keyed(
    first: dict[str, Any], then: dict[str, Any], key: str
) -> Callable[[World], httpx.Response]:
    """A call repeated under its idempotency key."""

    def call(world: World) -> httpx.Response:
        headers = {"idempotency-key": key}
        script = first.pop("script", json_script())
        assert world.answering(script, headers=headers, **first).status_code == 200
        return world.post(headers=headers, **then)

    return call


def posted(**how: Any) -> Callable[[World], httpx.Response]:
    return lambda world: world.post(**how)


def answered(*script: Any, **how: Any) -> Callable[[World], httpx.Response]:
    return lambda world: world.answering(*script, **how)


def running(**how: Any) -> Callable[[World], httpx.Response]:
    return lambda world: world.while_one_runs(**how)


AGAIN, NEVER, LATER, SOON = "again", "never", "later", "soon"
# What each asks of SDKs: AGAIN by their own back-off, NEVER, LATER (told, but not to be waited for)
# or SOON (after the time that is told). `limit` and `rates` say which other headers there are.
KINDS: dict[str, tuple[Callable[[World], httpx.Response], int, Reason, str, str, bool]] = {
    "bad json": (posted(raw=b"{"), 400, Reason.INVALID_REQUEST, NEVER, "", False),
    "bad field": (posted(n=99), 400, Reason.INVALID_REQUEST, NEVER, "", False),
    "capability": (
        posted(web_search_options={"search_context_size": "low"}),
        400, Reason.UNSUPPORTED_CAPABILITY, NEVER, "", False,
    ),
    "no key": (posted(secret="wrong"), 401, Reason.UNAUTHORIZED, NEVER, "", False),
    "model": (posted(secret="key-of-few"), 403, Reason.MODEL_NOT_ALLOWED, NEVER, "", False),
    "class": (
        posted(headers={"x-headrace-class": "interactive"}),
        403, Reason.CLASS_NOT_ALLOWED, NEVER, "", False,
    ),
    "no model": (posted(model="nobody"), 404, Reason.NOT_FOUND, NEVER, "", False),
    "no path": (posted(path="/v1/nothing"), 404, Reason.NOT_FOUND, NEVER, "", False),
    "method": (posted(method="DELETE"), 405, Reason.METHOD_NOT_ALLOWED, NEVER, "", False),
    "too large": (posted(raw=b" " * 11_000_000), 413, Reason.REQUEST_TOO_LARGE, NEVER, "", False),
    "encoded": (
        posted(raw=b"x", headers={"content-encoding": "br"}),
        415, Reason.UNSUPPORTED_ENCODING, NEVER, "", False,
    ),
    "key runs": (
        running(headers={"idempotency-key": "runs"}), 409, Reason.IDEMPOTENCY_BUSY, SOON, "", False,
    ),
    "key differs": (
        keyed({}, {"max_tokens": 7}, "differs"),
        409, Reason.IDEMPOTENCY_MISMATCH, NEVER, "", False,
    ),
    "key spent": (
        keyed({"script": json_script(answer(NOISE))}, {}, "spent"),
        409, Reason.IDEMPOTENCY_SPENT, NEVER, "", False,
    ),
    "rate": (
        twice("key-of-rate"), 429, Reason.RATE_LIMITED, SOON, "tenant requests_per_minute", True,
    ),
    "month": (
        twice("key-of-monthly"), 429, Reason.RATE_LIMITED, LATER, "tenant requests_per_month", True,
    ),
    "budget": (
        twice("key-of-budget", max_tokens=150),
        429, Reason.BUDGET_EXCEEDED, LATER, "tenant spend_per_day", True,
    ),
    "never fits": (
        posted(secret="key-of-small"),
        429, Reason.BUDGET_EXCEEDED, NEVER, "tenant spend_per_day", True,
    ),
    "concurrency": (
        running(secret="key-of-conc"),
        429, Reason.CONCURRENCY_LIMITED, SOON, "tenant concurrency", True,
    ),
    "task steps": (
        capped("steps"), 429, Reason.TASK_STEPS, NEVER, "task task_steps", True,
    ),
    "task spend": (
        capped("spend"), 429, Reason.TASK_SPEND, NEVER, "task task_spend", True,
    ),
    "task time": (
        capped("time", grows_old=True), 429, Reason.TASK_WALL, NEVER, "task task_wall", False,
    ),
    "task loop": (
        capped("loop"), 429, Reason.TASK_REPEATS, NEVER, "task task_repeats", False,
    ),
    "upstream 429": (
        answered(json_script(LIMITED, 429, [("Retry-After", "1")])),
        429, Reason.UPSTREAM_RATE_LIMITED, SOON, "", True,
    ),
    "upstream 429, no time": (
        answered(json_script(LIMITED, 429)), 429, Reason.UPSTREAM_RATE_LIMITED, SOON, "", True,
    ),
    "upstream 429, an hour": (
        answered(json_script(LIMITED, 429, [("Retry-After", "3600")]), model="free-3b"),
        429, Reason.UPSTREAM_RATE_LIMITED, LATER, "", True,
    ),
    "upstream 500": (
        answered(json_script({"error": {"message": "oh"}}, 500)),
        502, Reason.UPSTREAM_ERROR, AGAIN, "", True,
    ),
    "upstream reset": (answered([Reset()]), 502, Reason.UPSTREAM_ERROR, AGAIN, "", True),
    "upstream 503": (
        answered(json_script({"error": {"message": "busy"}}, 503)),
        503, Reason.NO_CAPACITY, SOON, "fleet", True,
    ),
    "upstream 404": (
        answered(json_script({"error": {"message": "no such model"}}, 404)),
        503, Reason.MODEL_UNAVAILABLE, SOON, "", True,
    ),
    "upstream silent": (
        answered([Hang()]), 504, Reason.UPSTREAM_TIMEOUT, AGAIN, "first_token_s", True,
    ),
    "own time": (
        answered([Hang()], headers={"x-headrace-deadline-ms": "100"}),
        504, Reason.DEADLINE_EXCEEDED, AGAIN, "total_s", True,
    ),
    "hook refuses": (
        answered(json_script({"verdict": "refuse"}), headers={"x-headrace-class": "batch"}),
        403, Reason.HOOK_REFUSED, NEVER, "guard", False,
    ),
    "hook fails": (
        answered(json_script({}, 500), headers={"x-headrace-class": "batch"}),
        503, Reason.HOOK_FAILED, AGAIN, "guard", False,
    ),
    "paused": (posted(model="paused"), 503, Reason.CLASS_PAUSED, SOON, "fleet class", False),
    "shed": (posted(model="shedding"), 503, Reason.SHED, SOON, "fleet class", False),
    "capped": (
        posted(secret="key-of-capped", messages=[{"role": "user", "content": "word " * 100}]),
        429, Reason.CONTEXT_CAPPED, SOON, "tenant input_tokens_per_request", False,
    ),
    "nobody serves": (posted(model="lonely"), 503, Reason.NO_CAPACITY, SOON, "fleet", True),
    "pool shut": (
        posted(model="shut"), 503, Reason.NO_CAPACITY, NEVER, "pool requests_per_minute", True,
    ),
    "pool busy": (
        running(model="one"), 503, Reason.NO_CAPACITY, SOON, "pool concurrency", True,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", KINDS)
def test_every_refusal_tells_sdks_whether_and_when_to_come_back(world: World, name: str) -> None:
    provoke, status, reason, retry, whose, has_rates = KINDS[name]
    response = provoke(world)
    assert response.status_code == status, response.text
    assert response.json()["error"]["code"] == reason.value
    assert uuid.UUID(response.headers["x-request-id"]).version == 7
    check_headers(response.headers, retry, whose, has_rates=has_rates)


def check_headers(headers: httpx.Headers, retry: str, whose: str, *, has_rates: bool) -> None:
    assert headers["x-should-retry"] == ("true" if retry in (AGAIN, SOON) else "false")
    if retry in (SOON, LATER):
        wait_ms = int(headers["retry-after-ms"])
        assert int(headers["retry-after"]) == max(1, math.ceil(wait_ms / 1000))
        assert 0 < wait_ms <= (120_000 if retry == SOON else 32 * 86_400_000)
    else:
        assert "retry-after" not in headers
        assert "retry-after-ms" not in headers
    found = [headers.get("x-headrace-scope", ""), headers.get("x-headrace-limit", "")]
    assert " ".join(filter(None, found)) == whose
    assert [one for one in RATE_NAMES if one in headers] == (RATE_NAMES if has_rates else [])
    for of in ("requests", "tokens") if has_rates else ():
        most, left = (int(headers[f"x-ratelimit-{what}-{of}"]) for what in ("limit", "remaining"))
        assert 0 <= left <= most
        assert float(headers[f"x-ratelimit-reset-{of}"].removesuffix("s")) > 0


def test_a_gateway_that_stops_tells_its_callers_to_come_back(tmp_path: Path) -> None:
    """The one kind that ends the gateway: no output when the drain limit has passed."""
    with redis.Redis.from_url(os.environ["REDIS_URL"]) as client:
        client.flushall()
    with (
        UpstreamThread([Hang()]) as upstream,
        serving(tmp_path, upstream, limits=WIDE, env={"HEADRACE_GATEWAY_DRAIN_S": "1"}) as gateway,
    ):
        found: list[httpx.Response] = []
        thread = threading.Thread(target=lambda: found.append(gateway.chat()))
        thread.start()
        end_s = time.monotonic() + 10
        while not upstream.completions:
            assert time.monotonic() < end_s
            time.sleep(0.01)
        gateway.process.terminate()
        thread.join(20)
    (response,) = found
    assert (response.status_code, response.json()["error"]["code"]) == (503, "shutting_down")
    check_headers(response.headers, SOON, "", has_rates=True)


def test_every_reason_is_provoked() -> None:
    assert {one[2] for one in KINDS.values()} | {Reason.SHUTTING_DOWN} == set(Reason)
