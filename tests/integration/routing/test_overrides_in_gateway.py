"""Overrides in the data plane: real gateways over the real store, and nobody else running."""

import contextlib
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
import redis

from routing.contracts.enums import WorkClass
from routing.contracts.override import Override, OverrideKind, encode_overrides
from routing.contracts.process import decode_gateway_status
from routing.store import keys
from routing.store.state import write_overrides
from tests.gatewaying import body_of, error_of, rows, serving, stream
from tests.ports import through
from tests.stack import (
    ACME_KEY,
    GLOBEX_KEY,
    GatewayProcess,
    make_snapshot,
    start_gateway,
    wait_until,
)
from tests.upstream import UpstreamThread, answer, json_script, stream_script, usage

QUICK = json_script(answer(used=usage(10, 5)))
SLOW = json_script(answer(used=usage(10, 5)), delay_s=0.6)
WHY = "Capacity is reduced."
AN_HOUR_MS = 3_600_000
IN_FORCE_WITHIN_S = 1.0  # from the write to the first request that feels it


def store_ms(store: "redis.Redis[bytes]") -> int:
    seconds, micros = store.time()
    return seconds * 1000 + micros // 1000


def put(store: "redis.Redis[bytes]", *items: dict[str, Any], for_ms: int = AN_HOUR_MS) -> str:
    """Write this set as the console does; its version."""
    now_ms = store_ms(store)
    made = tuple(
        Override(**({"id": at, "ends_at_ms": now_ms + for_ms, "reason": WHY} | item))
        for at, item in enumerate(items, 1)
    )
    raw, version = encode_overrides(made)
    write_overrides(store, raw, version)
    return version


def obeyed(store: "redis.Redis[bytes]", version: str) -> None:
    """Wait until every gateway says that it obeys this set."""

    def all_say() -> bool:
        found = [decode_gateway_status(raw) for raw in store.hgetall(keys.GATEWAYS).values()]
        return bool(found) and all(status.overrides == version for status in found)

    wait_until(all_say, 3, "the gateways' acknowledgement")


def set_in_force(store: "redis.Redis[bytes]", *items: dict[str, Any], **options: Any) -> None:
    obeyed(store, put(store, *items, **options))


def ask(gateway: GatewayProcess, secret: str = ACME_KEY, **options: Any) -> httpx.Response:
    headers = {"authorization": f"Bearer {secret}"}
    if work_class := options.pop("work_class", ""):
        headers["x-headrace-class"] = work_class
    if name := options.pop("once", ""):
        headers["idempotency-key"] = name
    with httpx.Client(timeout=30, trust_env=False) as client:
        url = f"{gateway.url}/v1/chat/completions"
        return client.post(url, json=body_of(**options), headers=headers)


PAUSE_BATCH = {"kind": OverrideKind.PAUSE, "work_class": WorkClass.BATCH}


def test_a_paused_class_is_refused_with_why_and_when_and_others_are_served(
    store: Any, tmp_path: Path
) -> None:
    with UpstreamThread(QUICK) as upstream, serving(tmp_path, upstream) as gateway:
        assert ask(gateway, work_class="batch").status_code == 200
        set_in_force(store, PAUSE_BATCH, for_ms=60_000)
        refused = ask(gateway, work_class="batch")
        assert refused.status_code == 503
        assert error_of(refused.json()) == "class_paused"
        assert WHY in refused.json()["error"]["message"]
        assert refused.headers["x-headrace-scope"] == "fleet"
        assert refused.headers["x-headrace-limit"] == "class_batch"
        # Not before its end, and at most a fifth later.
        assert 50_000 < int(refused.headers["retry-after-ms"]) <= 72_000
        assert ask(gateway).status_code == 200
        rows(store, 2)  # nothing held, nothing charged, but what was served


def test_a_call_that_was_answered_is_answered_again_whatever_is_paused_now(
    store: Any, tmp_path: Path
) -> None:
    with UpstreamThread(QUICK) as upstream, serving(tmp_path, upstream) as gateway:
        first = ask(gateway, work_class="batch", once="one")
        set_in_force(store, PAUSE_BATCH)
        again = ask(gateway, work_class="batch", once="one")
        assert (again.status_code, again.content) == (200, first.content)
        # A new one is refused, holds nothing, and its name stays free for a later try.
        for _ in range(2):
            refused = ask(gateway, work_class="batch", once="two")
            assert error_of(refused.json()) == "class_paused"
        assert len(upstream.completions) == 1
        set_in_force(store)
        assert ask(gateway, work_class="batch", once="two").status_code == 200
        found = rows(store, 2)  # the refused ones left none
        assert [bool(event.spend_nanousd) for event in found] == [True, True]


def test_a_set_is_obeyed_within_a_second_and_ends_by_itself_with_nobody_left(
    store: Any, tmp_path: Path
) -> None:
    with UpstreamThread(QUICK) as upstream, serving(tmp_path, upstream) as gateway:
        begin = time.monotonic()
        put(store, PAUSE_BATCH, for_ms=2_000)
        wait_until(lambda: ask(gateway, work_class="batch").status_code == 503, 3, "a refusal")
        assert time.monotonic() - begin < IN_FORCE_WITHIN_S
        store.set(keys.OVERRIDES, b"damaged")  # nobody writes a new set, this one is unreadable
        wait_until(lambda: ask(gateway, work_class="batch").status_code == 200, 4, "its end")
        assert 1.8 < time.monotonic() - begin < 3.5


def test_an_emptied_store_and_a_damaged_set_lift_nothing(store: Any, tmp_path: Path) -> None:
    with UpstreamThread(QUICK) as upstream, serving(tmp_path, upstream) as gateway:
        set_in_force(store, PAUSE_BATCH)
        store.delete(keys.OVERRIDES, keys.OVERRIDES_VERSION)
        store.publish(keys.NUDGES, "overrides")
        write_overrides(store, b"\x00 not a set", "damaged")
        log = gateway.log
        wait_until(lambda: "cannot be read" in log.read_text(), 3, "the damaged set seen")
        assert ask(gateway, work_class="batch").status_code == 503
        set_in_force(store)
        assert ask(gateway, work_class="batch").status_code == 200


def test_a_gateway_restarted_while_the_store_is_away_obeys_the_last_set_until_its_ends(
    store: Any, tmp_path: Path
) -> None:
    state = tmp_path / "state"
    with UpstreamThread(QUICK) as upstream, through(os.environ["REDIS_URL"]) as (way, url):
        snapshot = make_snapshot([upstream.address])
        with start_gateway(snapshot, url, state) as gateway:
            cap = {"kind": OverrideKind.OUTPUT_CAP, "work_class": WorkClass.STANDARD, "amount": 32}
            soon = store_ms(store) + 6_000
            set_in_force(store, PAUSE_BATCH | {"ends_at_ms": soon}, cap)
            assert error_of(ask(gateway, work_class="batch").json()) == "class_paused"
        way.refuse()
        with start_gateway(None, url, state) as gateway:
            assert store_ms(store) < soon
            refused = ask(gateway, work_class="batch")
            assert (refused.status_code, error_of(refused.json())) == (503, "class_paused")
            assert WHY in refused.json()["error"]["message"]
            # Its own end, by this gateway's clock; the other goes on.
            wait_until(lambda: ask(gateway, work_class="batch").status_code == 200, 8, "its end")
            assert store_ms(store) >= soon
            answered = ask(gateway, max_tokens=500)
            assert answered.headers["x-headrace-degraded"] == "output_cap=32"
            # The store is back and says that nothing is in force: its word replaces the disk's.
            way.mend()
            set_in_force(store)
            assert "x-headrace-degraded" not in ask(gateway, max_tokens=500).headers
        with start_gateway(None, url, state) as gateway:
            assert "x-headrace-degraded" not in ask(gateway, max_tokens=500).headers


def test_a_damaged_file_of_overrides_keeps_no_gateway_from_starting(
    store: Any, tmp_path: Path
) -> None:
    state = tmp_path / "state"
    state.mkdir()
    (state / "overrides.g0.bin").write_bytes(b"\x00 not a set")
    with UpstreamThread(QUICK) as upstream, serving(tmp_path, upstream) as gateway:
        assert ask(gateway, work_class="batch").status_code == 200
        assert "overrides on disk cannot be used" in gateway.log.read_text()


def test_a_lowered_output_bound_reaches_the_engine_and_is_told(store: Any, tmp_path: Path) -> None:
    with UpstreamThread(QUICK) as upstream, serving(tmp_path, upstream) as gateway:
        standard = {"kind": OverrideKind.OUTPUT_CAP, "work_class": WorkClass.STANDARD}
        set_in_force(store, {**standard, "amount": 64}, {**standard, "amount": 32})
        answered = ask(gateway, max_tokens=500)
        assert answered.status_code == 200
        assert answered.headers["x-headrace-degraded"] == "output_cap=32"
        within = ask(gateway, max_tokens=20)
        assert "x-headrace-degraded" not in within.headers
        other = ask(gateway, max_tokens=500, work_class="batch")
        assert "x-headrace-degraded" not in other.headers
        sent = [seen.json["max_tokens"] for seen in upstream.completions]
        assert sent == [32, 20, 500]


def test_a_stream_tells_its_lowered_bound_too(store: Any, tmp_path: Path) -> None:
    with UpstreamThread(stream_script()) as upstream, serving(tmp_path, upstream) as gateway:
        set_in_force(
            store,
            {"kind": OverrideKind.OUTPUT_CAP, "work_class": WorkClass.STANDARD, "amount": 32},
        )
        assert stream(gateway, max_tokens=500)[-1] == "[DONE]"
        assert upstream.completions[0].json["max_tokens"] == 32


def test_a_tenants_long_prompts_are_refused_and_its_short_ones_and_others_are_not(
    store: Any, tmp_path: Path
) -> None:
    long = [{"role": "user", "content": "word " * 1200}]
    with UpstreamThread(QUICK) as upstream, serving(tmp_path, upstream) as gateway:
        cap = {"kind": OverrideKind.CONTEXT_CAP, "tenant_id": "acme", "amount": 500}
        set_in_force(store, cap, for_ms=60_000)
        refused = ask(gateway, messages=long)
        assert refused.status_code == 429
        assert error_of(refused.json()) == "context_capped"
        assert WHY in refused.json()["error"]["message"]
        assert "500 tokens" in refused.json()["error"]["message"]
        assert refused.headers["x-headrace-scope"] == "tenant"
        assert refused.headers["x-headrace-limit"] == "input_tokens_per_request"
        assert 50_000 < int(refused.headers["retry-after-ms"]) <= 60_000
        assert ask(gateway).status_code == 200
        assert ask(gateway, GLOBEX_KEY, messages=long).status_code == 200


def test_refused_prompts_are_counted_as_offered_input(store: Any, tmp_path: Path) -> None:
    from routing.contracts.slices import decode_frame

    with UpstreamThread(QUICK) as upstream, serving(tmp_path, upstream) as gateway:
        cap = {"kind": OverrideKind.CONTEXT_CAP, "tenant_id": "acme", "amount": 1}
        set_in_force(store, cap)
        assert ask(gateway).status_code == 429

        def offered() -> int:
            frames = [decode_frame(found[b"f"]) for _, found in store.xrange(keys.SLICE_FRAMES)]
            return sum(row.refused_input_tokens for frame in frames for row in frame.rows)

        assert wait_until(offered, 3, "the frame") > 1


@pytest.mark.parametrize("share", [0.0, 0.5])
def test_a_shed_class_is_admitted_to_its_share(store: Any, tmp_path: Path, share: float) -> None:
    with UpstreamThread(QUICK) as upstream, serving(tmp_path, upstream) as gateway:
        shed = {"kind": OverrideKind.SHED, "work_class": WorkClass.STANDARD}
        set_in_force(store, {**shed, "admitted_ratio": share})
        with ThreadPoolExecutor(8) as threads:
            answers = list(threads.map(lambda _: ask(gateway), range(200)))
        admitted = [one for one in answers if one.status_code == 200]
        # Six standard deviations around the share.
        assert abs(len(admitted) / 200 - share) <= 6 * (share * (1 - share) / 200) ** 0.5
        refused = [one for one in answers if one.status_code != 200]
        assert {error_of(one.json()) for one in refused} == {"shed"}
        waits = [int(one.headers["retry-after-ms"]) for one in refused]
        assert min(waits) >= 30_000
        assert max(waits) <= 36_000
        assert max(waits) - min(waits) > 1_000  # they do not come back together


def test_a_tenants_concurrency_is_capped_over_two_gateways_and_freed_at_the_end(
    store: Any, tmp_path: Path
) -> None:
    with UpstreamThread(SLOW) as upstream, contextlib.ExitStack() as stack:
        gateways = [
            stack.enter_context(
                serving(tmp_path / name, upstream, env={"HEADRACE_GATEWAY_ID": name})
            )
            for name in ("g0", "g1")
        ]
        cap = {"kind": OverrideKind.CONCURRENCY_CAP, "tenant_id": "acme", "amount": 2}
        set_in_force(store, cap, for_ms=6_000)
        answers = together(gateways, 8, ACME_KEY)
        codes = sorted(one.status_code for one in answers)
        assert codes == [200, 200, 429, 429, 429, 429, 429, 429]
        refused = next(one for one in answers if one.status_code == 429)
        assert error_of(refused.json()) == "concurrency_limited"
        assert WHY in refused.json()["error"]["message"]
        assert refused.headers["x-headrace-scope"] == "tenant"
        assert {one.status_code for one in together(gateways, 8, GLOBEX_KEY)} == {200}
        wait_until(
            lambda: {one.status_code for one in together(gateways, 8, ACME_KEY)} == {200},
            10,
            "its end",
        )


def together(targets: list[GatewayProcess], count: int, secret: str) -> list[httpx.Response]:
    barrier = threading.Barrier(count)

    def one(number: int) -> httpx.Response:
        barrier.wait()
        return ask(targets[number % len(targets)], secret, max_tokens=5)

    with ThreadPoolExecutor(count) as threads:
        return list(threads.map(one, range(count)))
