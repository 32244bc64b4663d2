"""An Idempotency-Key makes a paid call one call: one charge, the same bytes for every repeat."""

import json
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import redis

from routing.contracts.enums import Dimension, RequestStatus, WindowKind
from routing.contracts.snapshot import bucket_of
from routing.store import keys
from routing.store.once import KEEP_MS, KEYS_MAX
from tests.gatewaying import ACME, body_of, error_of, row, rows, serving
from tests.stack import (
    ACME_KEY,
    GLOBEX_KEY,
    GatewayProcess,
    api_key,
    held,
    limit,
    store_server,
    usage_events,
    wait_until,
)
from tests.upstream import (
    Hang,
    Reset,
    Send,
    UpstreamThread,
    answer,
    framed,
    json_script,
    sse_head,
    stream_events,
    stream_script,
)

SECOND_KEY = "hr_test_acme_second"
Store = "redis.Redis[bytes]"


def post(
    gateway: GatewayProcess,
    key: str | None = "order-1",
    secret: str = ACME_KEY,
    path: str = "/v1/chat/completions",
    **fields: Any,
) -> httpx.Response:
    headers = {"authorization": f"Bearer {secret}"}
    if key is not None:
        headers["idempotency-key"] = key
    with httpx.Client(timeout=30, trust_env=False) as client:
        return client.post(f"{gateway.url}{path}", json=body_of(**fields), headers=headers)


def records(store: Store) -> dict[bytes, dict[bytes, bytes]]:
    """Every record of acme's bucket."""
    return {
        name: store.hgetall(name) for name in store.scan_iter(f"{keys.bucket_tag(ACME)}:once:*")
    }


def sums(store: Store) -> dict[bytes, int]:
    found = store.hgetall(f"{keys.bucket_tag(ACME)}:once-sums")
    return {name: int(value) for name, value in found.items()}


@contextmanager
def two_gateways(tmp_path: Path, *upstreams: UpstreamThread, **changes: Any):
    with ExitStack() as opened:
        yield [
            opened.enter_context(
                serving(tmp_path / name, *upstreams, env={"HEADRACE_GATEWAY_ID": name}, **changes)
            )
            for name in ("g0", "g1")
        ]


def test_a_repeat_gets_the_same_bytes_and_is_charged_once(store: Store, tmp_path: Path):
    with UpstreamThread() as upstream, two_gateways(tmp_path, upstream) as (one, two):
        first = post(one)
        repeats = [post(two), post(one)]
        assert first.status_code == 200
        assert "x-headrace-replayed" not in first.headers
        for repeat in repeats:
            assert (repeat.status_code, repeat.content) == (200, first.content)
            assert repeat.headers["x-headrace-replayed"] == "true"
            assert repeat.headers["x-request-id"] == first.headers["x-request-id"]
            assert repeat.headers["content-type"] == first.headers["content-type"]
            assert float(repeat.headers["x-headrace-cost-usd"]) == 0
        charged = row(store)
        assert charged.request_id == first.headers["x-request-id"]
        assert charged.spend_nanousd > 0
        assert len(upstream.completions) == 1


def test_duplicates_started_together_on_two_processes_run_once(store: Store, tmp_path: Path):
    count = 16
    slow = json_script(delay_s=1.0)
    headers = {"authorization": f"Bearer {ACME_KEY}", "idempotency-key": "order-1"}
    with UpstreamThread(slow) as upstream, two_gateways(tmp_path, upstream) as gateways:
        barrier = threading.Barrier(count)

        def call(number: int) -> list[httpx.Response]:
            url = f"{gateways[number % 2].url}/v1/chat/completions"
            with httpx.Client(timeout=30, trust_env=False, headers=headers) as client:
                barrier.wait()  # a client takes long to make: it is there before
                seen = [client.post(url, json=body_of())]
                while seen[-1].status_code == 409:
                    assert error_of(seen[-1].json()) == "idempotency_in_progress"
                    assert int(seen[-1].headers["retry-after"]) == 1
                    assert seen[-1].headers["x-should-retry"] == "true"
                    time.sleep(int(seen[-1].headers["retry-after-ms"]) / 1000)
                    seen.append(client.post(url, json=body_of()))
            return seen

        with ThreadPoolExecutor(count) as pool:
            answers = list(pool.map(call, range(count)))
        finals = [seen[-1] for seen in answers]
        assert {final.status_code for final in finals} == {200}
        assert len({final.content for final in finals}) == 1
        assert sum("x-headrace-replayed" not in final.headers for final in finals) == 1
        assert any(len(seen) > 1 for seen in answers), "nobody met the running call"
        assert len(upstream.completions) == 1
        row(store)


def test_another_body_or_path_under_the_key_is_a_conflict(store: Store, tmp_path: Path):
    with UpstreamThread() as upstream, serving(tmp_path, upstream) as gateway:
        assert post(gateway).status_code == 200
        others = [
            post(gateway, temperature=0.5),
            post(gateway, path="/v1/completions", prompt="hi"),
        ]
        for other in others:
            assert other.status_code == 409
            error = other.json()["error"]
            assert (error["code"], error["type"]) == ("idempotency_mismatch", "idempotency_error")
            assert error["param"] == "Idempotency-Key"
            assert other.headers["x-should-retry"] == "false"
        row(store)


@pytest.mark.parametrize("header", ["", "has space", "x" * 256, "tab\tbed", "sch\u00f6n"])
def test_a_header_that_is_no_key_is_named(store: Store, tmp_path: Path, header: str):
    with UpstreamThread() as upstream, serving(tmp_path, upstream) as gateway:
        with httpx.Client(timeout=30, trust_env=False) as client:
            response = client.post(
                f"{gateway.url}/v1/chat/completions",
                json=body_of(),
                headers=[
                    (b"authorization", f"Bearer {ACME_KEY}".encode()),
                    (b"idempotency-key", header.encode("latin-1")),
                ],
            )
        assert response.status_code == 400
        assert response.json()["error"]["param"] == "Idempotency-Key"
        assert upstream.completions == []


def test_a_stream_is_replayed_as_the_same_stream(store: Store, tmp_path: Path):
    texts = [f"tok{n} " for n in range(200)]
    with UpstreamThread(stream_script(texts)) as upstream, serving(tmp_path, upstream) as gateway:
        first = post(gateway, stream=True)
        repeat = post(gateway, stream=True)
        assert first.content.endswith(b"data: [DONE]\n\n")
        assert b"tok199" in first.content
        assert (repeat.status_code, repeat.content) == (200, first.content)
        assert repeat.headers["x-headrace-replayed"] == "true"
        assert repeat.headers["content-type"] == first.headers["content-type"]
        assert len(upstream.completions) == 1
        row(store)


def test_a_stream_cut_after_output_is_replayed_with_its_error(store: Store, tmp_path: Path):
    events = stream_events(["he", "llo"])[:3]
    cut = [sse_head(), *(Send(framed(event)) for event in events), Reset()]
    with UpstreamThread(cut) as upstream, serving(tmp_path, upstream) as gateway:
        first = post(gateway, stream=True)
        assert b"upstream_error" in first.content
        assert b"[DONE]" not in first.content
        repeat = post(gateway, stream=True)
        assert repeat.content == first.content
        assert len(upstream.completions) == 1
        assert row(store).status is RequestStatus.INCOMPLETE


def test_what_cost_nothing_is_not_remembered(store: Store, tmp_path: Path):
    refusing = json_script({"error": {"message": "busy"}}, 503)
    limits = (limit(Dimension.REQUESTS, 1, WindowKind.DAY),)
    with UpstreamThread(refusing) as upstream, serving(tmp_path, upstream) as gateway:
        assert post(gateway, "busy").status_code == 503
        upstream.plan([Reset()])
        assert post(gateway, "lost").status_code == 502
        upstream.plan(json_script())
        for key in ("busy", "lost"):
            assert post(gateway, key).status_code == 200
    with UpstreamThread() as upstream, serving(tmp_path / "b", upstream, limits=limits) as gateway:
        refused = post(gateway, "limited")
        assert (refused.status_code, error_of(refused.json())) == (429, "rate_limited")
        assert len(records(store)) == 2, "a refusal left a record"


def test_a_caller_that_hung_up_is_not_charged_twice(store: Store, tmp_path: Path):
    begun = [sse_head(), *(Send(framed(e)) for e in stream_events(["a", "b"])[:3]), Hang()]
    with UpstreamThread(begun) as upstream, serving(tmp_path, upstream) as gateway:
        with (
            httpx.Client(timeout=30, trust_env=False) as client,
            client.stream(
                "POST",
                f"{gateway.url}/v1/chat/completions",
                json=body_of(stream=True),
                headers={"authorization": f"Bearer {ACME_KEY}", "idempotency-key": "order-1"},
            ) as response,
        ):
            assert next(response.iter_raw())
        assert row(store).status is RequestStatus.CANCELLED
        repeat = post(gateway, stream=True)
        assert (repeat.status_code, error_of(repeat.json())) == (409, "idempotency_not_kept")
        assert repeat.headers["x-should-retry"] == "false"
        assert len(upstream.completions) == 1


def test_an_answer_too_large_is_remembered_but_not_kept(store: Store, tmp_path: Path):
    import random

    noise = "".join(random.Random(4).choices("abcdefghijklmnopqrstuvwxyz0123456789", k=600_000))
    with (
        UpstreamThread(json_script(answer(noise))) as upstream,
        serving(tmp_path, upstream) as gateway,
    ):
        first = post(gateway)
        assert noise.encode() in first.content
        repeat = post(gateway)
        assert (repeat.status_code, error_of(repeat.json())) == (409, "idempotency_not_kept")
        assert repeat.headers["x-should-retry"] == "false"
        assert len(upstream.completions) == 1
        row(store)
        assert sums(store) == {b"k:acme": 1}


def test_keys_of_other_tenants_and_other_api_keys_are_other_keys(store: Store, tmp_path: Path):
    from tests.stack import make_snapshot

    known = make_snapshot([]).keys | dict([api_key("acme", SECOND_KEY, id="k-second")])
    with UpstreamThread() as upstream, serving(tmp_path, upstream, keys=known) as gateway:
        first = post(gateway)
        for secret in (GLOBEX_KEY, SECOND_KEY):
            other = post(gateway, secret=secret)
            assert other.status_code == 200
            assert "x-headrace-replayed" not in other.headers
            # Nor does another body show that the name is taken.
            assert post(gateway, "order-2", secret).status_code == 200
        assert post(gateway, "order-2", temperature=0.1).status_code == 200
        assert post(gateway).headers["x-request-id"] == first.headers["x-request-id"]
        rows(store, 4)
        assert len(usage_events(store, bucket_of("globex"))) == 2


def test_nothing_readable_lies_in_the_store(store: Store, tmp_path: Path):
    secret_text = "the quick brown fox"
    with (
        UpstreamThread(json_script(answer(secret_text))) as upstream,
        serving(tmp_path, upstream) as gateway,
    ):
        post(gateway, "order-visible", messages=[{"role": "user", "content": "my plain prompt"}])
        ((name, record),) = records(store).items()
        everything = name + b"".join(k + v for k, v in record.items())
        for text in (secret_text, "order-visible", "my plain prompt", "choices"):
            assert text.encode() not in everything
        assert len(record[b"a"]) > 50
        assert 0 < store.pttl(name) <= KEEP_MS
        # Another tenant's seal, or a changed byte, opens nothing: it is spent, not served.
        store.hset(name, "a", record[b"a"][:-1] + bytes([record[b"a"][-1] ^ 1]))
        spoiled = post(
            gateway, "order-visible", messages=[{"role": "user", "content": "my plain prompt"}]
        )
        assert error_of(spoiled.json()) == "idempotency_not_kept"


def test_a_key_is_free_again_after_its_time_and_the_sums_follow(store: Store, tmp_path: Path):
    with UpstreamThread() as upstream, serving(tmp_path, upstream) as gateway:
        post(gateway)
        (name,) = records(store)
        assert sums(store)[b"k:acme"] == 1
        # Its hour passes.
        past = int(time.time() * 1000) - 1
        store.hset(name, "x", past)
        index = f"{keys.bucket_tag(ACME)}:once"
        (member,) = store.zrange(index, 0, -1)
        store.zadd(index, {member: past})
        again = post(gateway, temperature=0.3)
        assert again.status_code == 200
        assert "x-headrace-replayed" not in again.headers
        rows(store, 2)
        assert sums(store)[b"k:acme"] == 1
        assert store.zcard(index) == 1
        assert sums(store)[b"b"] == sums(store)[b"b:acme"] == len(records(store)[name][b"a"])


def test_a_tenant_at_its_bound_of_keys_is_told_so(store: Store, tmp_path: Path):
    with UpstreamThread() as upstream, serving(tmp_path, upstream) as gateway:
        assert post(gateway).status_code == 200
        store.hset(f"{keys.bucket_tag(ACME)}:once-sums", "k:acme", KEYS_MAX)
        refused = post(gateway, "one-more")
        assert (refused.status_code, error_of(refused.json())) == (429, "rate_limited")
        assert refused.headers["x-headrace-limit"] == "idempotency_keys"
        assert refused.headers["x-should-retry"] == "false"
        assert "x-headrace-replayed" in post(gateway).headers
        assert post(gateway, None).status_code == 200


def test_a_full_tenant_still_pays_once(store: Store, tmp_path: Path):
    from routing.store.once import TENANT_MAX_BYTES

    with UpstreamThread() as upstream, serving(tmp_path, upstream) as gateway:
        store.hset(f"{keys.bucket_tag(ACME)}:once-sums", "b:acme", TENANT_MAX_BYTES)
        assert post(gateway).status_code == 200
        assert error_of(post(gateway).json()) == "idempotency_not_kept"
        assert len(upstream.completions) == 1


def test_without_the_store_a_key_is_refused_and_others_are_served(tmp_path: Path):
    import os

    with (
        store_server(tmp_path / "valkey") as url,
        pytest.MonkeyPatch.context() as patch,
        UpstreamThread() as upstream,
    ):
        patch.setitem(os.environ, "REDIS_URL", url)
        with serving(tmp_path, upstream) as gateway, redis.Redis.from_url(url) as client:
            assert post(gateway).status_code == 200
            client.execute_command("CLIENT", "PAUSE", 20_000, "ALL")
            refused = post(gateway, "order-2")
            assert (refused.status_code, error_of(refused.json())) == (503, "no_capacity")
            assert refused.headers["retry-after"] == "1"
            away = post(gateway, "order-3")
            assert away.json()["error"]["param"] == "Idempotency-Key"
            assert post(gateway, None).status_code == 200
            assert len(upstream.completions) == 2


def test_a_killed_gateway_frees_the_key_once_its_call_is_accounted(store: Store, tmp_path: Path):
    with UpstreamThread([Hang()]) as upstream, two_gateways(tmp_path, upstream) as (one, two):

        def call() -> None:
            with pytest.raises(httpx.HTTPError):
                post(one)

        dying = threading.Thread(target=call)
        dying.start()
        wait_until(lambda: upstream.completions, what="the call at the upstream")
        one.process.send_signal(signal.SIGKILL)
        dying.join(10)
        upstream.plan(json_script())
        seen = []

        def answered() -> bool:
            seen.append(post(two))
            return seen[-1].status_code == 200

        wait_until(answered, 60, "an answer under the key")
        assert {error_of(r.json()) for r in seen[:-1]} == {"idempotency_in_progress"}
        wait_until(lambda: held(store, ACME) == 0, 5)
        kinds = [kind for kind, _ in usage_events(store, ACME)]
        assert kinds == ["w", "s"], "the lost call is swept before the next one is charged"
        repeat = post(two)
        assert (repeat.content, len(upstream.completions)) == (seen[-1].content, 2)


def test_an_answer_given_before_the_kill_is_not_charged_again(store: Store, tmp_path: Path):
    with UpstreamThread() as upstream, two_gateways(tmp_path, upstream) as (one, two):
        first = post(one)
        one.process.send_signal(signal.SIGKILL)
        repeat = post(two)
        assert json.loads(repeat.content) == json.loads(first.content)
        assert "x-headrace-replayed" in repeat.headers
        row(store)
        assert len(upstream.completions) == 1
