"""Bytes per token are learnt from reported usage, shared by gateways, and outlive a restart."""

import json
import os
import re
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
import redis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from routing.contracts.enums import UsageSource
from routing.contracts.estimates import KEPT_MS, decode_estimates
from routing.contracts.usage import UsageEvent
from routing.decision.estimate import TEMPLATE_TOKENS, Ask, Rates, input_tokens
from routing.gateway.calibration import Calibration
from routing.store import keys
from routing.store.client import StoreConnection
from routing.store.clock import StoreClock
from telemetry.stats.token_rates import (
    MIN_SAMPLES,
    MOST_RATE,
    Tally,
    error_of,
    learnt,
    merged,
    rate_of,
)
from tests.gatewaying import rows
from tests.stack import ACME_KEY, make_snapshot, start_gateway
from tests.upstream import Seen, UpstreamThread, answer, json_script, usage

pytestmark = pytest.mark.anyio
NOW_MS = 1_790_000_000_000


@asynccontextmanager
async def connected() -> AsyncIterator[StoreConnection]:
    clock = StoreClock(time.monotonic, int(time.time() * 1000))
    connection = StoreConnection(os.environ["REDIS_URL"], name="test", clock=clock)
    connection.start()
    await connection.wait_ready(5)
    try:
        yield connection
    finally:
        await connection.close()


def event(tokens: int, held: int = 400) -> UsageEvent:
    raw = {
        "request_id": "r", "tenant_id": "1", "key_id": "1", "project_id": "1", "model_asked": "m",
        "model": "m", "status": "ok", "usage_source": "reported", "work_class": "standard",
        "policy": "p", "price_version": 1, "gateway_id": "g", "started_at_ms": 1, "ended_at_ms": 2,
        "input_tokens": tokens, "held_input_tokens": held,
    }  # fmt: skip
    return msgspec.convert(raw, UsageEvent)


def taught(gateway_id: str, rate: int, *, count: int = MIN_SAMPLES) -> Calibration:
    calibration = Calibration(gateway_id)
    for _ in range(count):
        calibration.observe(Ask(1_000), event(1_000 // rate))
    return calibration


def test_prior_stands_until_there_are_enough_samples() -> None:
    few = taught("a", 4, count=MIN_SAMPLES - 1)
    few._take([])
    assert few.rates("m", 2.5) == Rates(2.5, 1.0)
    few.observe(Ask(1_000), event(250))
    few._take([])
    assert few.rates("m", 2.5).plain == pytest.approx(0.9 * 4.0, rel=0.02)
    assert few.rates("other", 2.5) == Rates(2.5, 1.0, is_unseen=True)


def test_rate_is_below_the_least_and_bounded() -> None:
    mixed = taught("a", 5, count=999)
    mixed.observe(Ask(1_000), event(500))
    mixed._take([])
    assert mixed.rates("m", 2.5).plain == pytest.approx(0.9 * 2.0, rel=0.02)
    extreme = taught("a", 100)
    extreme._take([])
    assert extreme.rates("m", 2.5).plain == MOST_RATE


def test_one_dearer_prompt_lowers_the_prior_before_enough_are_known() -> None:
    calibration = taught("a", 2, count=1)
    calibration._take([])
    assert calibration.rates("m", 2.5).plain == pytest.approx(0.9 * 2.0, rel=0.02)
    cheaper = taught("a", 5, count=1)
    cheaper._take([])
    assert cheaper.rates("m", 2.5).plain == 2.5


def test_the_first_report_counts_at_once() -> None:
    """Not with the next sharing: until then every further request would be held too low."""
    calibration = Calibration("a")
    assert calibration.rates("m", 2.5).is_unseen
    calibration.observe(Ask(1_000), event(200))
    assert calibration.rates("m", 2.5) == Rates(2.5, 1.0)
    calibration.observe(Ask(1_000), event(1_000))
    assert calibration.rates("m", 2.5).plain == 1.0
    calibration._take([])
    assert calibration.rates("m", 2.5).plain == 1.0, "shared, and counted once"
    assert calibration._all["m"].count == 2


@given(
    st.lists(st.tuples(st.integers(256, 400_000), st.floats(1.0, 12.0)), min_size=1, max_size=20)
)
@settings(derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_what_is_remembered_would_have_been_held(seen: list[tuple[int, float]]) -> None:
    """No prompt that was learnt from has more tokens than the rate holds for it now."""
    tally = Tally()
    prompts = [(size, max(1, int(size / rate))) for size, rate in seen]
    for size, tokens in prompts:
        tally.observe(size, 0, tokens, tokens)
    rate = rate_of(tally.plain, 2.5)
    for size, tokens in prompts:
        assert -int(-size // rate) >= tokens


def test_a_template_is_learnt_from_small_prompts_and_bounds_each_of_them() -> None:
    """Its worst case stands until enough are seen; one above that counts at once."""
    calibration = Calibration("a")
    ask = Ask(60, is_templated=True, frame_tokens=4)
    for _ in range(MIN_SAMPLES):
        assert calibration.rates("m", 2.5).template_tokens == TEMPLATE_TOKENS
        calibration.observe(ask, event(45, held=200))
        calibration._take([])
    found = calibration.rates("m", 2.5)
    assert 45 - 4 - 10 <= found.template_tokens < 45
    assert input_tokens(ask, found, 4096) >= 45
    calibration.observe(ask, event(400, held=200))
    found = calibration.rates("m", 2.5)
    assert input_tokens(ask, found, 4096) >= 400
    calibration._take([])
    assert calibration.rates("m", 2.5) == found, "shared, and counted once"
    before = found.template_tokens
    calibration.observe(Ask(60), event(900, held=1_000))  # no template around it
    calibration._take([])
    assert calibration.rates("m", 2.5).template_tokens == before


def test_estimated_usage_pictures_and_ids_teach_nothing() -> None:
    calibration = Calibration("a")
    counted = msgspec.structs.replace(event(1), usage_source=UsageSource.COUNTED)
    for _ in range(MIN_SAMPLES):
        calibration.observe(Ask(1_000), counted)
        calibration.observe(Ask(1_000, images=1), event(1_000))
        calibration.observe(Ask(1_000, input_tokens=9), event(1_000))
    calibration._take([])
    assert calibration.rates("m", 2.5) == Rates(2.5, 1.0, is_unseen=True)


def test_dense_text_beside_plain_is_learnt_without_risk() -> None:
    calibration = Calibration("a")
    for _ in range(MIN_SAMPLES):  # 600 plain bytes at 4 and 600 dense ones at 2: 150 + 300 tokens
        calibration.observe(Ask(1_200, dense_bytes=600), event(450))
    calibration._take([])
    rates = calibration.rates("m", 2.5)
    assert rates.plain == 2.5
    assert 1.0 < rates.dense <= 2.0


def test_counts_are_halved_so_that_a_new_tokenizer_is_learnt() -> None:
    tally = Tally()
    for _ in range(10_001):
        tally.observe(1_000, 0, 300, 250)
    assert tally.count == 5_001
    again = merged(learnt({"m": tally}))["m"]
    assert (again.plain, again.error, again.count) == (tally.plain, tally.error, tally.count)
    small = Tally()
    for _ in range(10_001):
        small.observe(60, 0, 300, 45, frame_tokens=4)
    (count,) = merged(learnt({"m": small}))["m"].template.values()
    assert count == 5_001
    assert error_of(tally.error).median == pytest.approx(1.2, rel=0.02)


async def test_gateways_share_and_find_their_own_again(store: redis.Redis) -> None:
    async with connected() as connection:
        first, second = taught("a", 4, count=30), taught("b", 4, count=30)
        await first.share(connection, NOW_MS)
        await second.share(connection, NOW_MS)
        assert second.rates("m", 2.5).plain == pytest.approx(0.9 * 4.0, rel=0.02)
        assert first.rates("m", 2.5).plain == 2.5  # has not looked since
        await first.share(connection, NOW_MS)
        assert first.rates("m", 2.5).plain == pytest.approx(0.9 * 4.0, rel=0.02)
        for _ in range(3):  # nobody counts anybody twice
            await first.share(connection, NOW_MS)
            await second.share(connection, NOW_MS)
        told = decode_estimates(store.hget(keys.ESTIMATES, "a"))
        assert sum(count for _, count in told.learnt[0].plain) == 30
        restarted = Calibration("a")
        await restarted.share(connection, NOW_MS)
        assert restarted.rates("m", 2.5).plain == pytest.approx(0.9 * 4.0, rel=0.02)
        store.hset(keys.ESTIMATES, "junk", b"\xc1")
        await restarted.share(connection, NOW_MS + KEPT_MS)
        assert set(store.hkeys(keys.ESTIMATES)) == {b"a"}


def test_the_first_small_prompts_of_every_shape_are_held_for_the_worst_template(
    store: redis.Redis, state_dir: Path
) -> None:
    """A tokenizer of bytes, a template of 120 tokens, tools of 250: no row above its hold."""
    said = [{"role": "user", "content": "hi"}]
    tool = {"type": "function", "function": {"name": "f", "parameters": {}}}
    with UpstreamThread() as upstream:

        def used(seen: Seen) -> Any:
            asked = seen.json
            text = len(json.dumps(asked.get("messages", asked.get("prompt"))).replace(" ", ""))
            tools = asked.get("tools", [])
            around = 120 + (250 + len(json.dumps(tools).replace(" ", ""))) if tools else 120
            return json_script(answer(used=usage(text + (around if "messages" in asked else 3))))

        upstream.choose = used
        snapshot = make_snapshot([upstream.address])
        with start_gateway(snapshot, os.environ["REDIS_URL"], state_dir) as gateway:
            many = [{"role": "user", "content": "x"}] * 6
            for fields in (
                {"messages": said},
                {"messages": said, "tools": [tool]},
                {"messages": many},
            ):
                reply = gateway.chat(model="alpha-8b", max_tokens=5, **fields)
                assert reply.status_code == 200
            plain = httpx.post(
                f"{gateway.url}/v1/completions",
                json={"model": "alpha-8b", "prompt": "hi", "max_tokens": 5},
                headers={"authorization": f"Bearer {ACME_KEY}"},
                trust_env=False,
            )
            assert plain.status_code == 200
            found = rows(store, 4)
    assert [one.input_tokens for one in found if one.is_above_hold] == []
    assert all(one.input_tokens * 4 > one.held_input_tokens for one in found[:1])


def test_real_gateway_learns_marks_and_counts_what_exceeds_its_hold(
    store: redis.Redis, state_dir: Path
) -> None:
    text = "all these words are plain " * 40
    with UpstreamThread() as upstream:
        upstream.choose = lambda seen: json_script(answer(used=usage(prompt=5_000)))
        snapshot = make_snapshot([upstream.address])
        with start_gateway(snapshot, os.environ["REDIS_URL"], state_dir) as gateway:
            reply = gateway.chat(
                model="alpha-8b", messages=[{"role": "user", "content": text}], max_tokens=5
            )
            assert reply.status_code == 200
            page = httpx.get(f"{gateway.admin_url}/metrics", trust_env=False).text
    assert re.search(r'headrace_hold_exceeded_total\{model="alpha-8b"\} 1', page), page
