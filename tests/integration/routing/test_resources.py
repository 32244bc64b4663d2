"""Named resources: uses never exceed a limit, are charged once, and outlive their gateway."""

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from routing.contracts.enums import Dimension, LimitScope, RequestStatus, UsageSource, WindowKind
from routing.contracts.snapshot import Price
from routing.gateway.sweep import QUIET_S, SWEEP_S
from routing.store import keys
from routing.store.uses import ENDED_KEEP_MS, USES_MAX
from tests.accounting import fields
from tests.gatewaying import ACME, rows, serving
from tests.stack import (
    ACME_KEY,
    GLOBEX_KEY,
    GatewayProcess,
    held,
    limit,
    open_buckets,
    tenant,
    usage_events,
    wait_for_room_in_the_minute,
    wait_until,
)

Store = "redis.Redis[bytes]"
UNIT = 2_000_000  # 0.002 USD
RESOURCES = {
    "vector_query": (Price(7, 0, 0, 0, unit_nanousd=UNIT),),
    "db:orders": (Price(1, 0, 0, 0),),  # free, and said so
    "tool:later": (Price(1, 0, 0, 0, valid_from_ms=9_999_999_999_999, unit_nanousd=1),),
}
LOST_S = QUIET_S + 2 * SWEEP_S + 10


def of_resource(
    dimension: Dimension, amount: int, window: WindowKind = WindowKind.DAY, name: str = ""
):
    return limit(dimension, amount, window, LimitScope.RESOURCE, name or "vector_query")


@contextmanager
def gateways(tmp_path: Path, count: int = 2, **changes: Any) -> Iterator[list[GatewayProcess]]:
    changes = {"resources": RESOURCES} | changes
    with ExitStack() as opened:
        yield [
            opened.enter_context(
                serving(tmp_path / name, env={"HEADRACE_GATEWAY_ID": name}, **changes)
            )
            for name in [f"g{number}" for number in range(count)]
        ]


def post(
    gateway: GatewayProcess, path: str, secret: str = ACME_KEY, task: str = "", **body: Any
) -> httpx.Response:
    headers = {"authorization": f"Bearer {secret}"} | ({"x-headrace-task-id": task} if task else {})
    with httpx.Client(timeout=30, trust_env=False, headers=headers) as client:
        return client.post(f"{gateway.url}/v1/resources/{path}", json=body)


def reserve(gateway: GatewayProcess, name: str = "vector_query", **body: Any) -> dict[str, Any]:
    response = post(gateway, f"{name}/reserve", **body)
    assert response.status_code == 200, response.text
    return response.json()


def settle(gateway: GatewayProcess, use: dict[str, Any], **body: Any) -> httpx.Response:
    return post(gateway, f"{use['id']}/settle", **body)


def error_of(response: httpx.Response) -> tuple[int, str, str | None]:
    error = response.json()["error"]
    return response.status_code, error["code"], error["param"]


def counters(store: Store) -> dict[str, dict[str, int]]:
    """Every counter of acme, by its key below bucket and epoch."""
    prefix = f"{keys.bucket_tag(ACME)}:1:"
    return {
        name.decode().removeprefix(prefix): fields(store, name)
        for name in store.scan_iter(f"{prefix}[wg]:*")
    }


def one_row(store: Store, timeout_s: float = 5.0):
    return rows(store, 1, timeout_s)[0]


def test_a_use_is_held_settled_and_charged_once(store: Store, tmp_path: Path):
    with gateways(tmp_path, 1, limits=(of_resource(Dimension.CONCURRENCY, 4, WindowKind.NOW),)) as (
        gateway,
    ):
        use = reserve(gateway, units=3, task="t-1")
        assert use["held"] == {
            "requests": 1, "concurrency": 1, "units": 3, "spend_usd": "0.006000000",
        }  # fmt: skip
        assert use["resource"] == "vector_query"
        assert held(store, ACME) == 1
        first = settle(gateway, use, units=2)
        assert (first.status_code, first.json()["spend_usd"]) == (200, "0.004000000")
        assert first.json()["task_id"] == "t-1"
        event = one_row(store)
        assert (event.model, event.status) == ("resource:vector_query", RequestStatus.OK)
        assert (event.spend_nanousd, event.held_nanousd) == (2 * UNIT, 3 * UNIT)
        assert (event.price_version, event.policy, event.task_id) == (7, "main@1", "t-1")
        assert event.usage_source is UsageSource.REPORTED
        found = counters(store)
        day = next(value for name, value in found.items() if name.startswith("w:acme:tenant:"))
        assert (day["usd"], day["req"], day["usd_h"], day["req_h"]) == (2 * UNIT, 1, 0, 0)
        assert found["g:acme:resource:vector_query:g"]["conc_h"] == 0


@pytest.mark.parametrize("dimension", [Dimension.CONCURRENCY, Dimension.REQUESTS])
def test_uses_started_together_never_exceed_a_limit(
    store: Store, tmp_path: Path, dimension: Dimension
):
    most, count = 5, 24
    window = WindowKind.NOW if dimension is Dimension.CONCURRENCY else WindowKind.MINUTE
    bound = (of_resource(dimension, most, window),)
    with gateways(tmp_path, limits=bound) as both:
        if window is WindowKind.MINUTE:
            wait_for_room_in_the_minute(store)
        barrier = threading.Barrier(count)

        def call(number: int) -> httpx.Response:
            url = f"{both[number % 2].url}/v1/resources/vector_query/reserve"
            headers = {"authorization": f"Bearer {ACME_KEY}"}
            with httpx.Client(timeout=30, trust_env=False, headers=headers) as client:
                barrier.wait()
                return client.post(url, json={})

        with ThreadPoolExecutor(count) as pool:
            answers = list(pool.map(call, range(count)))
        admitted = [answer for answer in answers if answer.status_code == 200]
        refused = [answer for answer in answers if answer.status_code == 429]
        assert (len(admitted), len(refused)) == (most, count - most)
        assert held(store, ACME) == most
        code, name = (
            ("concurrency_limited", "concurrency")
            if window is WindowKind.NOW
            else ("rate_limited", "requests_per_minute")
        )
        for answer in refused:
            assert answer.json()["error"]["code"] == code
            assert answer.headers["x-headrace-limit"] == name
            assert answer.headers["x-headrace-scope"] == "resource"
            assert int(answer.headers["retry-after"]) >= 1
            assert int(answer.headers["retry-after-ms"]) >= 1
        for number, answer in enumerate(admitted):
            assert settle(both[number % 2], answer.json()).status_code == 200
        wait_until(lambda: held(store, ACME) == 0, 5, "nothing held")
        # One settled elsewhere also leaves its owner's end, which counts nothing.
        settled = [event for kind, event in usage_events(store, ACME) if kind == "s"]
        assert len({event.request_id for event in settled}) == most
        spent = [c["usd"] for name, c in counters(store).items() if name.startswith("w:acme:t")]
        assert spent == [most * UNIT]
        after = post(both[0], "vector_query/reserve")
        assert after.status_code == (200 if window is WindowKind.NOW else 429)


def test_spend_stops_at_its_budget_and_says_not_to_retry(store: Store, tmp_path: Path):
    bound = (of_resource(Dimension.SPEND_NANOUSD, 5 * UNIT),)
    with gateways(tmp_path, 1, limits=bound) as (gateway,):
        use = reserve(gateway, max_spend_usd="0.01")
        refused = post(gateway, "vector_query/reserve")
        assert error_of(refused)[:2] == (429, "budget_exceeded")
        assert refused.headers["x-should-retry"] == "false"
        assert refused.headers["x-headrace-limit"] == "spend_per_day"
        assert settle(gateway, use, spend_usd="0.004").status_code == 200
        assert settle(gateway, reserve(gateway, units=3)).status_code == 200
        assert post(gateway, "vector_query/reserve").status_code == 429
        assert sum(event.spend_nanousd for event in rows(store, 2)) == 5 * UNIT


def test_a_settle_is_idempotent_on_every_gateway(store: Store, tmp_path: Path):
    with gateways(tmp_path) as (one, two):
        use = reserve(one, units=3)
        first = settle(two, use, units=2)
        repeats = [settle(gateway, use, units=2) for gateway in (one, two)]
        assert [repeat.content for repeat in repeats] == [first.content] * 2
        for gateway in (one, two):
            other = settle(gateway, use, units=1)
            assert error_of(other) == (409, "idempotency_mismatch", "id")
            assert other.headers["x-should-retry"] == "false"
        assert settle(one, use, status="failed").status_code == 409
        # The gateway that reserved it learns of its end: it has nothing to charge.
        wait_until(lambda: len(usage_events(store, ACME)) == 2, 10, "the owner's empty end")
        (kind, event), (end, _) = usage_events(store, ACME)
        assert (kind, event.spend_nanousd, end) == ("s", 2 * UNIT, "r")
        assert [f[b"k"] for _, f in store.xrange(keys.bucket_usage(ACME))][1] == b"0"
        spent = [c["usd"] for name, c in counters(store).items() if name.startswith("w:")]
        assert spent == [2 * UNIT]


def test_settles_started_together_give_one_charge_and_one_answer(store: Store, tmp_path: Path):
    with gateways(tmp_path) as both:
        use = reserve(both[0], units=9)
        barrier = threading.Barrier(8)

        def call(number: int) -> httpx.Response:
            barrier.wait()
            return settle(both[number % 2], use, units=number + 1)

        with ThreadPoolExecutor(8) as pool:
            answers = list(pool.map(call, range(8)))
        won = [answer.json() for answer in answers if answer.status_code == 200]
        assert len(won) == 1, [answer.text for answer in answers]
        assert {answer.status_code for answer in answers} <= {200, 409}
        wait_until(lambda: held(store, ACME) == 0, 5, "nothing held")
        first = usage_events(store, ACME)[0][1]
        assert f"{first.spend_nanousd / 1e9:.9f}" == won[0]["spend_usd"]
        day = [c for name, c in counters(store).items() if name.startswith("w:")]
        assert [(c["usd"], c["req"]) for c in day] == [(first.spend_nanousd, 1)]


def test_a_killed_gateways_use_is_settled_by_another_and_never_charged_twice(
    store: Store, tmp_path: Path
):
    env = {"HEADRACE_GATEWAY_ID": "g0"}
    with gateways(tmp_path) as (one, two):
        use = reserve(one, units=4, ttl_s=120)
        one.process.kill()
        one.process.wait(10)
        assert held(store, ACME) == 1
        first = settle(two, use, units=3)
        assert (first.status_code, first.json()["spend_usd"]) == (200, "0.006000000")
        assert one_row(store).spend_nanousd == 3 * UNIT
        with serving(tmp_path / "g0", env=env, resources=RESOURCES) as again:
            wait_until(lambda: len(usage_events(store, ACME)) == 2, 10, "its journal's end")
            assert [f[b"k"] for _, f in store.xrange(keys.bucket_usage(ACME))][1] == b"0"
            assert settle(again, use, units=3).content == first.content
        spent = [c["usd"] for name, c in counters(store).items() if name.startswith("w:")]
        assert spent == [3 * UNIT]


def test_a_restarted_gateway_lets_its_uses_live(store: Store, tmp_path: Path):
    with gateways(tmp_path, 1) as (one,):
        use = reserve(one, units=4, ttl_s=120)
        one.process.kill()
        one.process.wait(10)
        with serving(
            tmp_path / "g0", env={"HEADRACE_GATEWAY_ID": "g0"}, resources=RESOURCES
        ) as again:
            assert held(store, ACME) == 1
            assert settle(again, use, units=1).status_code == 200
            assert one_row(store).spend_nanousd == UNIT


def test_what_nobody_settles_is_charged_what_was_held_and_a_late_settle_corrects_it(
    store: Store, tmp_path: Path
):
    with gateways(tmp_path) as (one, two):
        use = reserve(one, units=4, ttl_s=1, task="t-2")
        renewed = reserve(one, units=1, ttl_s=1)
        answer = post(two, f"{renewed['id']}/renew", ttl_s=300)
        assert answer.status_code == 200, answer.text
        assert answer.json()["expires_at"] > renewed["expires_at"]
        wait_until(lambda: held(store, ACME) == 1, LOST_S, "swept")
        kind, event = usage_events(store, ACME)[0]
        assert (kind, event.status, event.task_id) == ("w", RequestStatus.INCOMPLETE, "t-2")
        assert event.usage_source is UsageSource.ESTIMATED
        assert (event.spend_nanousd, event.error_code) == (4 * UNIT, "not_settled")
        assert error_of(post(one, f"{use['id']}/renew"))[:2] == (404, "not_found")
        late = settle(two, use, units=1)
        assert (late.status_code, late.json()["spend_usd"]) == (200, "0.002000000")
        wait_until(
            lambda: [k for k, _ in usage_events(store, ACME)].count("s") == 1, 5, "late entry"
        )
        # It counts nothing: the ledger corrects the row that it meets.
        entries = [f for _, f in store.xrange(keys.bucket_usage(ACME)) if f[b"t"] == b"s"]
        assert [entry[b"k"] for entry in entries] == [b"0"]
        assert settle(one, use, units=1).content == late.content
        assert settle(one, renewed).status_code == 200, "its renewal held"


def test_an_emptied_store_learns_of_a_use_again(store: Store, tmp_path: Path):
    with gateways(tmp_path) as (one, two):
        use = reserve(one, units=4, ttl_s=120)
        before = store.zscore(keys.bucket_leases(ACME), use["id"])
        store.flushall()
        open_buckets(store, {ACME}, epoch=2)
        wait_until(lambda: held(store, ACME) == 1, 15, "registered by its gateway")
        assert store.zscore(keys.bucket_leases(ACME), use["id"]) == before
        assert settle(two, use, units=3).status_code == 200
        wait_until(lambda: held(store, ACME) == 0, 5, "nothing held")
        assert [event.spend_nanousd for _, event in usage_events(store, ACME)][:1] == [3 * UNIT]
        spent = [
            fields(store, name)["usd"]
            for name in store.scan_iter(f"{keys.bucket_tag(ACME)}:2:w:acme:tenant:*")
        ]
        assert spent == [3 * UNIT]


def test_other_tenants_find_nothing(store: Store, tmp_path: Path):
    same_bucket = tenant("globex")
    globex = msgspec.structs.replace(same_bucket, bucket=ACME)
    with gateways(tmp_path, 1, tenants={"acme": tenant("acme"), "globex": globex}) as (gateway,):
        use = reserve(gateway)
        for verb in ("settle", "renew"):
            found = post(gateway, f"{use['id']}/{verb}", secret=GLOBEX_KEY)
            assert error_of(found)[:2] == (404, "not_found")
        assert held(store, ACME) == 1
        assert settle(gateway, use).status_code == 200
        assert error_of(post(gateway, f"{use['id']}/settle", secret=GLOBEX_KEY))[0] == 404
        assert post(gateway, f"{use['id']}/settle", secret="hr_wrong").status_code == 401


def test_what_is_refused_is_named(store: Store, tmp_path: Path):
    narrow = tenant("globex", models=("resource:db:orders",))
    with gateways(tmp_path, 1, tenants={"acme": tenant("acme"), "globex": narrow}) as (gateway,):
        refusals = [
            ("nothing/reserve", {}, (404, "not_found", "resource")),
            ("tool:later/reserve", {}, (404, "not_found", "resource")),
            ("vector_query/reserve", {"units": 0}, (400, "invalid_request", "units")),
            ("vector_query/reserve", {"units": "1"}, (400, "invalid_request", "units")),
            ("vector_query/reserve", {"ttl_s": 601}, (400, "invalid_request", "ttl_s")),
            (
                "vector_query/reserve",
                {"max_spend_usd": "1e3"},
                (400, "invalid_request", "max_spend_usd"),
            ),
            (
                "vector_query/reserve",
                {"units": 2, "max_spend_usd": "5"},
                (400, "invalid_request", "max_spend_usd"),
            ),
            ("vector_query/reserve", {"unit": 1}, (400, "invalid_request", "unit")),
            ("0190/settle", {}, (404, "not_found", "id")),
        ]
        for path, body, expected in refusals:
            assert error_of(post(gateway, path, **body)) == expected, (path, body)
        assert held(store, ACME) == 0
        assert (
            error_of(post(gateway, "vector_query/reserve", secret=GLOBEX_KEY))[:2]
            == (403, "model_not_allowed")
        )  # fmt: skip
        free = post(gateway, "db:orders/reserve", secret=GLOBEX_KEY)
        assert free.json()["held"]["spend_usd"] == "0.000000000"
        use = reserve(gateway, units=2)
        for body, param in [
            ({"units": 3}, "units"),
            ({"spend_usd": "0.005"}, "spend_usd"),
            ({"units": 1, "spend_usd": "0"}, "spend_usd"),
            ({"status": "done"}, "status"),
        ]:
            assert error_of(settle(gateway, use, **body)) == (400, "invalid_request", param)
        above = settle(gateway, use, units=3, above_hold=True)
        assert above.json()["spend_usd"] == "0.006000000"
        event = one_row(store)
        assert event.is_above_hold
        assert event.spend_nanousd == 3 * UNIT


@pytest.mark.parametrize("status", ["failed", "cancelled"])
def test_a_use_that_came_to_nothing_costs_nothing_unless_it_says_so(
    store: Store, tmp_path: Path, status: str
):
    with gateways(tmp_path, 1) as (gateway,):
        assert settle(gateway, reserve(gateway), status=status).json()["spend_usd"] == "0.000000000"
        charged = settle(gateway, reserve(gateway), status=status, units=1)
        assert charged.json()["spend_usd"] == "0.002000000"
        assert [event.status.value for event in rows(store, 2)] == [status] * 2


def test_a_stopping_gateway_does_not_wait_for_uses(store: Store, tmp_path: Path):
    with gateways(tmp_path) as (one, two):
        use = reserve(one, ttl_s=300)
        began = time.monotonic()
        assert one.stop() == 0
        assert time.monotonic() - began < 10
        assert held(store, ACME) == 1
        assert settle(two, use).status_code == 200
        assert one_row(store).spend_nanousd == UNIT


def test_the_records_that_a_tenant_keeps_are_bounded(store: Store, tmp_path: Path):
    """One record more than may be is refused and changes nothing; room comes as records go."""
    uses = f"{keys.bucket_tag(ACME)}:uses:acme"
    with gateways(tmp_path, 1) as (gateway,):
        use = reserve(gateway)
        assert store.zcard(uses) == 1
        assert settle(gateway, use, units=1).status_code == 200
        assert store.zscore(uses, use["id"]) <= (store.time()[0] + 1) * 1000 + ENDED_KEEP_MS
        later = (store.time()[0] + 3_600) * 1000
        store.zadd(uses, {f"u{number}": later for number in range(USES_MAX - 1)})
        refused = post(gateway, "vector_query/reserve")
        assert error_of(refused)[:2] == (429, "rate_limited")
        assert refused.headers["x-headrace-limit"] == "resource_uses"
        assert refused.headers["retry-after"] == "60"
        assert held(store, ACME) == 0
        assert store.zcard(uses) == USES_MAX
        store.zadd(uses, {f"u{number}": 1 for number in range(USES_MAX - 1)})
        second = reserve(gateway)
        assert {name.decode() for name in store.zrange(uses, 0, -1)} == {use["id"], second["id"]}
