"""Limits of a pool and of the fleet: real gateways, the real store, several processes, kill -9."""

import contextlib
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
import redis
from django.test import Client

from console.models import AuditEvent
from routing.contracts.capacity import CapacityLimit, CapacityScope
from routing.contracts.enums import Dimension
from routing.policies.services import push_snapshot
from routing.store import keys
from tests.cases.test_r07_limits_across_processes import Peak
from tests.gatewaying import ACME, body_of, rows, serving
from tests.managing import SECONDS_TO_TAKE_EFFECT, Manager, managed_gateway, managed_world
from tests.stack import (
    ACME_KEY,
    GatewayProcess,
    held,
    model,
    pool,
    usage_events,
    wait_for_room_in_the_minute,
    wait_until,
)
from tests.upstream import UpstreamThread, answer, json_script, usage

SHORT = json_script(answer(used=usage(10, 5)))
SLOW = json_script(answer(used=usage(10, 5)), delay_s=1.0)
FLEET = keys.credits_of(CapacityScope.FLEET, "")
POOL = keys.credits_of(CapacityScope.POOL, "p1")


@contextlib.contextmanager
def gateways(
    tmp_path: Path, upstream: UpstreamThread, count: int, **changes: object
) -> Iterator[list[GatewayProcess]]:
    with contextlib.ExitStack() as stack:
        yield [
            stack.enter_context(
                serving(
                    tmp_path / f"g{number}",
                    upstream,
                    env={"HEADRACE_GATEWAY_ID": f"g{number}"},
                    **changes,
                )
            )
            for number in range(count)
        ]


def limited(upstream: UpstreamThread, *limits: CapacityLimit) -> dict[str, object]:
    """The pool with these limits."""
    entry = pool("p1", [upstream.address])
    return {"pools": {"p1": type(entry)(**{**_fields(entry), "limits": limits})}}


def _fields(entry: object) -> dict[str, object]:
    return {name: getattr(entry, name) for name in entry.__struct_fields__}  # type: ignore[attr-defined]


def burst(targets: list[GatewayProcess], count: int) -> list[httpx.Response]:
    barrier = threading.Barrier(count)

    def one(number: int) -> httpx.Response:
        barrier.wait()
        return targets[number % len(targets)].chat(ACME_KEY, **body_of(max_tokens=5))

    with ThreadPoolExecutor(count) as threads:
        return list(threads.map(one, range(count)))


def owned(store: "redis.Redis", name: str) -> int:
    """Concurrency that gateways own now."""
    found = store.hgetall(name)
    return sum(int(v.split()[0]) for field, v in found.items() if field.startswith(b"g:conc:"))


def taken(store: "redis.Redis", name: str) -> int:
    """Requests of the present minute that gateways have leased or spent."""
    minute = store.time()[0] // 60
    found = store.hgetall(name)
    values = [v.split() for field, v in found.items() if field.startswith(b"r:req:")]
    return sum(int(amount) for at, amount in values if int(at) == minute)


@pytest.mark.parametrize("count", [1, 2, 4])
def test_rates_of_the_fleet_are_never_passed_by_any_number_of_gateways(
    store: "redis.Redis", tmp_path: Path, count: int
) -> None:
    limits = (CapacityLimit(Dimension.REQUESTS, 20),)
    with (
        UpstreamThread(SHORT) as upstream,
        gateways(tmp_path, upstream, count, fleet_limits=limits) as all_of_them,
    ):
        wait_for_room_in_the_minute(store, need_s=20)
        found = burst(all_of_them, 60)
        codes = Counter(one.status_code for one in found)
        assert set(codes) == {200, 503}
        assert 20 - 2 * count <= codes[200] <= 20  # a chunk of one may wait at a gateway
        assert len(upstream.completions) == codes[200]
        refused = next(one for one in found if one.status_code == 503)
        assert refused.json()["error"]["code"] == "no_capacity"
        assert refused.headers["x-headrace-scope"] == "fleet"
        assert refused.headers["x-headrace-limit"] == "requests_per_minute"
        assert 0 < int(refused.headers["retry-after-ms"]) <= 60_000
        wait_until(lambda: held(store, ACME) == 0, 5, "refusals hold nothing")
        kinds = Counter(kind for kind, _ in usage_events(store, ACME))
        assert kinds == {"s": codes[200], "v": codes[503]}


@pytest.mark.parametrize("count", [1, 2, 4])
def test_concurrency_of_a_pool_is_never_passed_and_is_used(
    store: "redis.Redis", tmp_path: Path, count: int
) -> None:
    with UpstreamThread(SLOW) as upstream:
        limits = (CapacityLimit(Dimension.CONCURRENCY, 8),)
        with gateways(tmp_path, upstream, count, **limited(upstream, *limits)) as all_of_them:
            found = burst(all_of_them, 40)
            codes = Counter(one.status_code for one in found)
            assert set(codes) == {200, 503}
            assert Peak(upstream).most <= 8
            assert codes[200] >= 8 - count
            refused = next(one for one in found if one.status_code == 503)
            assert refused.headers["x-headrace-scope"] == "pool"
            assert refused.headers["x-headrace-limit"] == "concurrency"


def test_what_a_killed_gateway_owned_expires_and_the_sum_stays_below_the_limit(
    store: "redis.Redis", tmp_path: Path
) -> None:
    with UpstreamThread(SLOW) as upstream:
        limits = (CapacityLimit(Dimension.CONCURRENCY, 4), CapacityLimit(Dimension.REQUESTS, 400))
        with gateways(tmp_path, upstream, 2, **limited(upstream, *limits)) as (one, two):
            with ThreadPoolExecutor(4) as threads:
                lost = [threads.submit(one.chat, ACME_KEY, **body_of(max_tokens=5)) for _ in "123"]
                wait_until(lambda: len(upstream.completions) == 3, 5, "three run")
                one.process.kill()
                one.process.wait(10)
                for call in lost:
                    with pytest.raises(httpx.HTTPError):
                        call.result()
            codes = [answered.status_code for answered in burst([two], 4)]
            assert codes.count(200) <= 1  # what the dead one had is not lent to anybody yet
            assert owned(store, POOL) <= 4
            wait_until(
                lambda: [r.status_code for r in burst([two], 4)] == [200] * 4, 25, "all of it again"
            )
            assert owned(store, POOL) <= 4
            assert taken(store, POOL) <= 400


def test_a_stopped_gateway_gives_its_credits_back(store: "redis.Redis", tmp_path: Path) -> None:
    limits = (CapacityLimit(Dimension.CONCURRENCY, 40), CapacityLimit(Dimension.REQUESTS, 100))
    with (
        UpstreamThread(SHORT) as upstream,
        gateways(tmp_path, upstream, 1, fleet_limits=limits) as (gateway,),
    ):
        wait_for_room_in_the_minute(store, need_s=15)
        assert gateway.chat(ACME_KEY, **body_of(max_tokens=5)).status_code == 200
        wait_until(lambda: owned(store, FLEET) > 0 and taken(store, FLEET) > 1, 5, "leased")
        gateway.stop()
        assert owned(store, FLEET) == 0
        assert taken(store, FLEET) == 1


def test_tokens_that_were_not_needed_are_given_back(store: "redis.Redis", tmp_path: Path) -> None:
    """200 of 240 output tokens are held each time; five are used, so the minute has room again."""
    with UpstreamThread(SHORT) as upstream:
        limits = (CapacityLimit(Dimension.OUTPUT_TOKENS, 240),)
        with gateways(tmp_path, upstream, 1, **limited(upstream, *limits)) as (gateway,):
            wait_for_room_in_the_minute(store, need_s=15)
            for _ in range(6):
                assert gateway.chat(ACME_KEY, **body_of(max_tokens=200)).status_code == 200
            too_large = gateway.chat(ACME_KEY, **body_of(max_tokens=241))
            assert too_large.status_code == 503
            assert too_large.headers["x-should-retry"] == "false"
            assert too_large.headers["x-headrace-limit"] == "output_tokens_per_minute"
            rows(store, 7)


def test_a_full_pool_is_passed_over_for_the_next_target(
    store: "redis.Redis", tmp_path: Path
) -> None:
    with UpstreamThread(SHORT) as first, UpstreamThread(SHORT) as second:
        full = limited(first, CapacityLimit(Dimension.REQUESTS, 0))["pools"]
        pools = {**full, "p2": pool("p2", [second.address])}  # type: ignore[dict-item]
        models = {"alpha-8b": model("alpha-8b", pools=("p1", "p2"))}
        with gateways(tmp_path, first, 1, pools=pools, models=models) as (gateway,):
            assert gateway.chat(ACME_KEY, **body_of(max_tokens=5)).status_code == 200
            assert (len(first.completions), len(second.completions)) == (0, 1)


@pytest.mark.django_db(transaction=True)
def test_a_limit_set_by_form_or_rest_reaches_the_gateways(
    store: "redis.Redis", tmp_path: Path
) -> None:
    with UpstreamThread(SHORT) as upstream:
        world = managed_world(upstream, "acme")
        manager, secret = Manager(world), world.keys["acme"].secret
        page = Client()
        page.force_login(world.people["ola"])
        with managed_gateway(world, store, tmp_path / "state") as gateway:

            def asked() -> tuple[int, str | None]:
                found = gateway.chat(secret, model="llama-8b", max_tokens=5)
                return found.status_code, found.headers.get("x-headrace-scope")

            assert asked() == (200, None)
            wanted = {"dimension": "conc", "amount": 0, "confirm": True}
            saved = manager.call("put", "pools/p-a/limits/", wanted)
            assert saved.json() == [{"dimension": "conc", "window": "g", "amount": 0}]
            wait_until(lambda: asked() == (503, "pool"), SECONDS_TO_TAKE_EFFECT, "the pool's")
            assert manager.call("delete", "pools/p-a/limits/?dimension=conc").status_code == 204
            wait_until(lambda: asked() == (200, None), SECONDS_TO_TAKE_EFFECT, "served again")

            stops_all = {"dimension": "req", "amount": "0"}
            doubted = page.post("/fleet/pools/p-a/limits/", stops_all)
            assert doubted.status_code == 422
            assert "Yes, let p-a take nothing" in doubted.text
            path = "/fleet/limits/"
            doubted = page.post(path, stops_all)
            assert doubted.status_code == 422
            assert "Yes, stop every tenant" in doubted.text
            assert page.post(path, stops_all | {"confirm": "on"}).status_code == 302
            push_snapshot()
            wait_until(lambda: asked() == (503, "fleet"), SECONDS_TO_TAKE_EFFECT, "the fleet's")
            assert "requests per minute" in page.get(path).text
            assert page.post(path, {"dimension": "req", "amount": "-1"}).status_code == 422
            assert page.post(path, {"dimension": "usd", "amount": "1"}).status_code == 422
            assert page.post(path, {"dimension": "req", "amount": ""}).status_code == 302
            push_snapshot()
            wait_until(lambda: asked() == (200, None), SECONDS_TO_TAKE_EFFECT, "served again")
        acts = AuditEvent.objects.filter(object_type="capacity_limit").order_by("pk")
        assert [(one.act, one.object_id) for one in acts] == [
            ("capacity_limit.set", "p-a:conc"),
            ("capacity_limit.remove", "p-a:conc"),
            ("capacity_limit.set", "fleet:req"),
            ("capacity_limit.remove", "fleet:req"),
        ]
