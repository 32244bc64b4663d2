"""Another model answers when the one asked for cannot: before any output, inside the one hold."""

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
import redis

from routing.contracts.capacity import CapacityLimit
from routing.contracts.enums import Dimension, LimitScope, RequestStatus
from routing.contracts.pricing import spend_nanousd
from routing.contracts.snapshot import FailurePolicy, Fallback, Price
from routing.contracts.usage import HoldInfo, decode_hold_info
from routing.store import keys
from routing.store.packed import read_hold
from tests.gatewaying import ACME, body_of, error_of, row, rows, serving, stream, streaming, text_of
from tests.stack import (
    ACME_KEY,
    ALPHA,
    GatewayProcess,
    api_key,
    held,
    limit,
    model,
    policy,
    pool,
    start_gateway,
    tenant,
    wait_until,
)
from tests.upstream import (
    Hang,
    Reset,
    Seen,
    Send,
    UpstreamThread,
    answer,
    delta,
    event,
    framed,
    json_script,
    sse_head,
    stream_script,
    usage,
)

BETA = Price(7, 3_000_000_000, 300_000_000, 6_000_000_000)  # dearer than ALPHA
ALL = ("no_capacity", "upstream_error", "upstream_timeout")
FULL = json_script({"error": {"message": "currently busy"}}, 503)
BROKEN = json_script({"error": {"message": "boom"}}, 500)
GOOD = json_script(answer("from beta", usage(12, 7)))


@pytest.fixture
def upstreams() -> Iterator[tuple[UpstreamThread, UpstreamThread]]:
    with UpstreamThread(FULL) as alpha, UpstreamThread(GOOD) as beta:
        yield alpha, beta


def falling_back(
    tmp_path: Path,
    upstreams: tuple[UpstreamThread, UpstreamThread],
    when: tuple[str, ...] = ALL,
    **changes: Any,
) -> contextlib.AbstractContextManager[GatewayProcess]:
    """alpha-8b at the first upstream, beta-13b at the second, which may stand in for it."""
    alpha, beta = upstreams
    beta_model = changes.pop("beta", {})
    beta_pool = pool("p2", [beta.address], "beta-13b")
    found = {
        "models": {
            "alpha-8b": model("alpha-8b", fallbacks=(Fallback("beta-13b", when, 0.2),)),
            "beta-13b": model("beta-13b", ("p2",), BETA, **beta_model),
        },
        "pools": {
            "p1": pool("p1", [alpha.address]),
            "p2": msgspec.structs.replace(beta_pool, **changes.pop("beta_pool", {})),
        },
    }
    return serving(tmp_path, **found | changes)


def ask(gateway: GatewayProcess, headers: dict[str, str] | None = None, **fields: Any) -> Any:
    return httpx.post(
        f"{gateway.url}/v1/chat/completions",
        json=body_of(**fields),
        headers={"authorization": f"Bearer {ACME_KEY}", **(headers or {})},
        timeout=30,
        trust_env=False,
    )


def test_the_model_that_served_is_named_priced_and_within_the_one_hold(
    tmp_path: Path, store: "redis.Redis[bytes]", upstreams: Any
) -> None:
    with falling_back(tmp_path, upstreams, aliases={"chat": "alpha-8b"}) as gateway:
        got = ask(gateway, model="chat")
        assert (got.status_code, got.json()["choices"][0]["message"]["content"]) == (
            200, "from beta",
        )  # fmt: skip
        assert got.headers["x-headrace-degraded"] == "model=beta-13b"
        assert [len(one.completions) for one in upstreams] == [1, 1]
        assert upstreams[1].completions[0].json["model"] == "beta-13b"
        found = row(store)
        assert (found.model_asked, found.model, found.pool) == ("chat", "beta-13b", "p2")
        assert (found.attempts, found.price_version) == (2, BETA.version)
        assert found.spend_nanousd == spend_nanousd(BETA, 12, 0, 7)
        assert got.headers["x-headrace-cost-usd"] == f"{found.spend_nanousd / 1e9:.9f}"
        worst = spend_nanousd(BETA, found.held_input_tokens, 0, 100)
        # The hold of each amount is the largest of both: nobody has seen alpha's prompts yet.
        least = spend_nanousd(BETA, 12, 0, 100)
        assert least < found.held_nanousd <= worst
        assert found.held_nanousd > spend_nanousd(ALPHA, found.held_input_tokens, 0, 100)
        assert not found.is_above_hold
        counted = 'headrace_fallbacks_total{model="alpha-8b",fallback="beta-13b",outcome="ok"} 1'
        assert counted in metrics_of(gateway)


def test_a_gateway_that_dies_meanwhile_bills_the_model_that_serves(
    tmp_path: Path, store: "redis.Redis[bytes]", upstreams: Any
) -> None:
    """The hold in the store (for a sweeper) and the journal (for a restart) both know it."""
    beta = upstreams[1]
    beta.plan([sse_head(), Send(framed(event(delta("on")))), Hang()])
    with falling_back(tmp_path, upstreams) as gateway, streaming(gateway) as response:
        pieces = response.iter_bytes()  # it closes the stream when it goes
        next(pieces)
        (name,) = wait_until(lambda: list(store.scan_iter(f"{keys.bucket_tag(ACME)}:h:*")), 5)
        wait_until(lambda: told_of(store, name).price == BETA, 5, "the hold has beta's price")
        assert told_of(store, name).event.model == "beta-13b"
        assert told_of(store, name).event.model_asked == "alpha-8b"
        gateway.process.kill()
        gateway.process.wait(10)
    with start_gateway(None, os.environ["REDIS_URL"], tmp_path / "state"):
        found = row(store, 20)
    assert (found.model, found.price_version) == ("beta-13b", BETA.version)
    tokens = (found.input_tokens, 0, found.output_tokens)
    assert found.spend_nanousd == spend_nanousd(BETA, *tokens) > spend_nanousd(ALPHA, *tokens)


def told_of(store: "redis.Redis[bytes]", name: bytes) -> HoldInfo:
    return decode_hold_info(read_hold(store.get(name) or b"").info)


def metrics_of(gateway: GatewayProcess) -> str:
    return httpx.get(f"{gateway.admin_url}/metrics", trust_env=False).text


def test_a_stream_falls_back_before_its_first_token_and_never_after(
    tmp_path: Path, store: "redis.Redis[bytes]", upstreams: Any
) -> None:
    alpha, beta = upstreams
    role = Send(framed(event(delta("", role="assistant"))))
    beta.plan(stream_script(["from ", "beta"]))
    with falling_back(tmp_path, upstreams) as gateway:
        alpha.plan([sse_head(), role, Reset()])
        assert text_of(stream(gateway)) == "from beta"
        alpha.plan([sse_head(), role, Send(framed(event(delta("one")))), Reset()])
        events = stream(gateway)
        assert error_of(events[-1]) == "upstream_error"
        assert len(beta.completions) == 1
        first, second = rows(store, 2)
        assert (first.model, first.status) == ("beta-13b", RequestStatus.OK)
        assert (second.model, second.status) == ("alpha-8b", RequestStatus.INCOMPLETE)


@pytest.mark.parametrize(
    ("script", "when", "falls"),
    [
        (FULL, ("no_capacity",), True),
        (FULL, ("upstream_error", "upstream_timeout"), False),
        (BROKEN, ("upstream_error",), True),
        (BROKEN, ("no_capacity",), False),
        ([Hang()], ("upstream_timeout",), True),
        ([Hang()], ("no_capacity", "upstream_error"), False),
        (json_script({"error": {"message": "bad"}}, 400), ALL, False),
    ],
    ids=["full", "full, not said", "error", "error, not said", "late", "late, not said", "caller"],
)
def test_the_policy_says_after_what(
    tmp_path: Path,
    store: "redis.Redis[bytes]",
    upstreams: Any,
    script: Any,
    when: tuple[str, ...],
    falls: bool,
) -> None:
    upstreams[0].plan(script)
    late = policy(deadlines=(0.3, 5.0, 60.0))
    # A whole answer may take a tenth of a second more for each token of its bound.
    with falling_back(tmp_path, upstreams, when, policy=late) as gateway:
        got = ask(gateway, max_tokens=2)
        assert (got.status_code == 200) is falls, got.text
        assert len(upstreams[1].completions) == falls
        assert ("x-headrace-degraded" in got.headers) is falls
        if not falls and script != FULL:
            assert row(store).model == "alpha-8b"


def one_key(**fields: Any) -> dict[str, Any]:
    return dict([api_key("acme", ACME_KEY, **fields)])


@pytest.mark.parametrize(
    ("changes", "headers"),
    [
        ({}, {"x-headrace-exact-model": "true"}),
        ({"keys": one_key(models=("alpha-8b",))}, {}),
        ({"tenants": {"acme": tenant("acme", models=("alpha-8b",))}}, {}),
        (
            {
                "tenants": {
                    "acme": tenant(
                        "acme",
                        (limit(
                            Dimension.REQUESTS, 9, scope=LimitScope.TENANT_MODEL,
                            subject="beta-13b",
                        ),),
                    )
                }
            },
            {},
        ),
        ({"beta_pool": {"capabilities": ("completions",)}}, {}),
        ({"beta": {"context_tokens": 8}}, {}),
        ({"policy": policy(failures=FailurePolicy(attempts=1))}, {}),
        ({"policy": policy(failures=FailurePolicy(retry_burst=0.5))}, {}),
    ],
    ids=["exact", "key", "tenant", "own limit", "capability", "context", "attempts", "budget"],
)  # fmt: skip
def test_who_may_not_have_it_gets_the_refusal_of_the_model_asked_for(
    tmp_path: Path,
    store: "redis.Redis[bytes]",
    upstreams: Any,
    changes: dict[str, Any],
    headers: dict[str, str],
) -> None:
    with falling_back(tmp_path, upstreams, **changes) as gateway:
        got = ask(gateway, headers)
        assert (got.status_code, error_of(got.json())) == (503, "no_capacity")
        assert "x-headrace-degraded" not in got.headers
        assert [len(one.completions) for one in upstreams] == [1, 0]
        wait_until(lambda: held(store, ACME) == 0, 5, "nothing held")
        (refused,) = rows(store, 1)
        assert (refused.model, refused.spend_nanousd) == ("alpha-8b", 0)


def test_a_wrong_word_is_refused(
    tmp_path: Path, store: "redis.Redis[bytes]", upstreams: Any
) -> None:
    with falling_back(tmp_path, upstreams) as gateway:
        got = ask(gateway, {"x-headrace-exact-model": "yes"})
        assert (got.status_code, got.json()["error"]["param"]) == (400, "x-headrace-exact-model")


def test_when_the_fallback_fails_too_its_row_names_it(
    tmp_path: Path, store: "redis.Redis[bytes]", upstreams: Any
) -> None:
    upstreams[1].plan(BROKEN)
    with falling_back(tmp_path, upstreams) as gateway:
        got = ask(gateway)
        assert (got.status_code, error_of(got.json())) == (502, "upstream_error")
        found = row(store)
        assert (found.model, found.attempts, found.spend_nanousd) == ("beta-13b", 2, 0)


def test_room_is_kept_for_fallbacks_and_they_take_no_more(
    tmp_path: Path, store: "redis.Redis[bytes]", upstreams: Any
) -> None:
    """Of ten places two are kept: beta's own callers find eight, fallbacks find the other two."""
    beta = upstreams[1]
    parked = [sse_head(), Send(framed(event(delta("on")))), Hang()]

    def choose(seen: Seen) -> Any:
        return parked

    beta.choose = choose
    limits = (CapacityLimit(Dimension.CONCURRENCY, 10),)
    kept: list[Iterator[bytes]] = []
    with contextlib.ExitStack() as open_streams, falling_back(
        tmp_path, upstreams, beta_pool={"limits": limits}
    ) as gateway:  # fmt: skip

        def opened(name: str) -> int:
            response = open_streams.enter_context(streaming(gateway, model=name))
            if response.status_code == 200:
                kept.append(response.iter_bytes())  # it closes the stream when it goes
                next(kept[-1])
            return response.status_code

        own = [opened("beta-13b") for _ in range(9)]
        assert own == [200] * 8 + [503]
        others = [opened("alpha-8b") for _ in range(3)]
        assert others == [200, 200, 503]
        kept.clear()
        open_streams.close()
        wait_until(lambda: all(seen.closed_at for seen in beta.completions), 10, "all are closed")


def test_tries_wait_a_part_of_the_base_and_the_deadline_ends_them(
    tmp_path: Path, store: "redis.Redis[bytes]", upstreams: Any
) -> None:
    """A base of 5 s: each fallback waits up to that, and none that the request has no time for."""
    slow = policy(failures=FailurePolicy(backoff_base_s=5.0, backoff_max_s=5.0))
    with falling_back(tmp_path, upstreams, policy=slow) as gateway:
        gaps = []
        for _ in range(6):
            began = time.monotonic()
            got = ask(gateway, {"x-headrace-deadline-ms": "1500"})
            took_s = time.monotonic() - began
            assert took_s < 4.5, "nobody waits past the request's own time"
            tried = [one.completions[-1].arrived_at for one in upstreams if one.completions]
            if got.status_code == 200:
                gaps.append(tried[1] - tried[0])
            else:
                assert error_of(got.json()) == "no_capacity"
            upstreams[0].requests.clear()
            upstreams[1].requests.clear()
        assert all(gap_s < 1.6 for gap_s in gaps)
        assert len(gaps) < 6, "a wait of up to 5 s is often longer than 1.5 s"
