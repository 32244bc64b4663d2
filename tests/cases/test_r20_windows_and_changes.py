"""R20: each limit has its own window, and changing a limit does not wipe what was used."""

import time
from pathlib import Path

import httpx
import pytest
import redis

from routing.contracts.enums import Dimension
from tests.accounting import fields
from tests.gatewaying import ACME, body_of, serving
from tests.managing import SECONDS_TO_TAKE_EFFECT, Manager, managed_gateway, managed_world
from tests.stack import (
    ACME_KEY,
    GatewayProcess,
    held,
    limit,
    make_snapshot,
    publish,
    wait_for_room_in_the_minute,
    wait_until,
)
from tests.upstream import UpstreamThread, answer, json_script, usage


def outputs(amount: int) -> tuple:
    return (limit(Dimension.REQUESTS, 500), limit(Dimension.OUTPUT_TOKENS, amount))


def use(
    gateway: GatewayProcess, upstream: UpstreamThread, store: "redis.Redis", tokens: int
) -> httpx.Response:
    upstream.plan(json_script(answer(used=usage(1, tokens))))
    response = gateway.chat(ACME_KEY, **body_of(max_tokens=tokens))
    wait_until(lambda: held(store, ACME) == 0, 5, "settled")
    return response


def next_minute(store: "redis.Redis") -> None:
    """Wait for the store's next minute to begin."""
    start = store.time()[0] // 60
    while store.time()[0] // 60 == start:
        time.sleep(0.1)


def change(store: "redis.Redis", upstream: UpstreamThread, number: int, amount: int) -> None:
    publish(store, make_snapshot([upstream.address], limits=outputs(amount), number=number))


def test_used_amount_outlives_changes_of_the_limit_but_not_its_window(
    store: "redis.Redis", tmp_path: Path
):
    with (
        UpstreamThread() as upstream,
        serving(tmp_path, upstream, limits=outputs(1000)) as gateway,
    ):
        assert use(gateway, upstream, store, 900).status_code == 200
        next_minute(store)
        assert use(gateway, upstream, store, 800).status_code == 200, "a new window"
        # A call that is admitted before the lowered limit is in force must not use up the raised.
        upstream.plan(json_script(answer(used=usage(1, 1))))
        change(store, upstream, 2, 500)

        def lowered() -> bool:
            found = gateway.chat(ACME_KEY, **body_of(max_tokens=1))
            return found.status_code == 429 and found.json()["error"]["code"] == "rate_limited"

        wait_until(lowered, 5, "lowered limit refuses")
        used = 800 + gateway_extra(store)
        change(store, upstream, 3, 1500)
        upstream.plan(json_script(answer(used=usage(1, 0))))

        def remaining() -> int | None:
            found = gateway.chat(ACME_KEY, **body_of(max_tokens=1))
            text = found.headers.get("x-ratelimit-remaining-tokens")
            return int(text) if found.status_code == 200 and text else None

        wait_until(lambda: remaining() is not None, 5, "raised limit admits")
        left = remaining()
        assert left is not None
        assert 1500 - used - 1 <= left <= 1500 - used


def gateway_extra(store: "redis.Redis") -> int:
    """Tokens of the requests that passed before the lowered limit was in force."""
    name = max(store.scan_iter("*:w:acme:tenant::m:*"))
    return fields(store, name)["out"] - 800


@pytest.mark.django_db(transaction=True)
def test_an_anchored_day_resets_at_its_anchor_and_not_before(
    store: "redis.Redis", tmp_path: Path
) -> None:
    with UpstreamThread() as upstream:
        world = managed_world(upstream, "acme")
        upstream.plan(json_script(answer()))
        manager, key = Manager(world), world.keys["acme"]
        with managed_gateway(world, store, tmp_path / "state") as gateway:

            def asked() -> httpx.Response:
                return gateway.chat(key.secret, model="llama-8b", max_tokens=5)

            wait_for_room_in_the_minute(store, need_s=20)
            reset_s = (store.time()[0] // 60 + 1) * 60
            at = time.strftime("%H:%M", time.gmtime(reset_s))
            bound = {"scope": "tenant", "dimension": "req", "window": "d", "amount": 1}
            saved = manager.call("put", "tenants/acme/limits/", {**bound, "anchor_time": at})
            assert saved.status_code == 200, saved.content
            assert saved.json()[0]["window_end"] == time.strftime(
                "%Y-%m-%dT%H:%M:%S.000000Z", time.gmtime(reset_s)
            )
            wait_until(lambda: asked().status_code == 429, SECONDS_TO_TAKE_EFFECT, "refused")
            refused = asked()
            left_s = reset_s - store.time()[0]
            assert refused.headers["x-headrace-limit"] == "requests_per_day"
            assert left_s - 1 <= int(refused.headers["retry-after-ms"]) / 1000 <= left_s + 1
            next_minute(store)
            again = asked()
            assert again.status_code == 200, again.text
            assert again.headers["x-ratelimit-remaining-requests"] == "0"
            reset = float(again.headers["x-ratelimit-reset-requests"].removesuffix("s"))
            assert 86_400 - 10 <= reset <= 86_400
            assert asked().status_code == 429
