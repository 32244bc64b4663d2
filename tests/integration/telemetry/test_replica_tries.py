"""What gateways counted of each replica, folded once and read by whole spans, and its share."""

import asyncio
import os
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.test import Client
from redis.asyncio import Redis

from capacity.models import Replica
from routing.contracts.slices import ReplicaDelta
from routing.store import keys
from telemetry.collector.fold import fold
from telemetry.replicas.selectors import tries_of
from telemetry.stats.sketch import index_of
from telemetry.stats.tries import KEPT_S, LOOK_BACK_S, SPAN_MS, UNSIZED, octave_of, spans_of
from tests import factories
from tests.collecting import FakeGateway
from tests.factories import World

pytestmark = pytest.mark.django_db
BIN = index_of(0.2)


def folded() -> None:
    async def once() -> None:
        async with Redis.from_url(os.environ["REDIS_URL"]) as client:
            await fold(client, time.time_ns() // 1_000_000)

    asyncio.run(once())


def test_each_report_counts_once_over_gateways_and_replays(store: Any) -> None:
    now_ms = time.time_ns() // 1_000_000
    at_ms = now_ms - 20_000
    one, other = FakeGateway(store), FakeGateway(store, gateway_id="g1")
    seen = (ReplicaDelta("p-0", 3, 1, [(BIN, 2)]), ReplicaDelta("p-1", 5))
    one.report(at_ms=at_ms, times=3, replicas=seen)
    other.report(at_ms=at_ms, replicas=seen)
    folded()
    sized = ReplicaDelta("p-0", 2, ttft_by_octave_s={octave_of(1500): [(BIN, 1)]})
    one.report(at_ms=at_ms, replicas=(sized,))
    folded()
    folded()
    found = tries_of(["p-0", "p-1", "p-9"], since_ms=now_ms - 60_000, until_ms=now_ms)
    assert found is not None
    assert (found["p-0"].requests, found["p-0"].failed, found["p-0"].ttft_s) == (8, 2, {BIN: 5})
    # those of gateways from before sizes were told stand apart
    assert found["p-0"].ttft_by_octave_s == {UNSIZED: {BIN: 4}, 11: {BIN: 1}}
    assert (found["p-1"].requests, found["p-9"].requests) == (10, 0)
    assert 0 < store.ttl(keys.replica_span(at_ms // SPAN_MS)) <= KEPT_S


def test_what_began_before_the_time_asked_for_is_left_out(store: Any) -> None:
    now_ms = time.time_ns() // 1_000_000
    gateway = FakeGateway(store)
    for ago_s in (40, 30, 20, 10):
        gateway.report(at_ms=now_ms - ago_s * 1000, replicas=(ReplicaDelta("p-0", 1),))
    folded()
    for since_s, most in ((45, 4), (25, 2), (5, 0)):
        found = tries_of(["p-0"], since_ms=now_ms - since_s * 1000, until_ms=now_ms)
        assert found is not None
        assert most - 1 <= found["p-0"].requests <= most


def test_spans_begin_a_second_late_and_end_with_the_present_one() -> None:
    assert list(spans_of(10_000, 20_000)) == [3]  # 11 s is inside the third: it begins at 15 s
    assert list(spans_of(9_000, 20_001)) == [2, 3, 4]
    assert list(spans_of(20_000, 10_000)) == []
    assert len(spans_of(0, 9_999_999_999)) <= LOOK_BACK_S * 1000 // SPAN_MS + 1


def test_a_pools_page_shows_the_share_that_was_had_and_what_slow_start_allows(store: Any) -> None:
    world = World()
    factories.make_tenant(world, "acme")
    factories.make_people(world)
    factories.make_fleet(world, {"p-a": 2})
    long_ago = datetime.now(UTC) - timedelta(hours=1)
    Replica.objects.update(lifecycle_since=long_ago)
    Replica.objects.filter(name="p-a-1").update(lifecycle_since=datetime.now(UTC))
    client = Client()
    client.force_login(world.people["ada"])
    text = client.get("/fleet/pools/p-a/").text
    assert text.count("slow start: at most") == 1
    assert "slow start: at most 9%" in text.replace("\u202f", "").replace(" %", "%")
    gateway = FakeGateway(store)
    gateway.report(replicas=(ReplicaDelta("p-a-0", 9), ReplicaDelta("p-a-1", 1)))
    folded()
    text = client.get("/fleet/pools/p-a/").text.replace(" %", "%")
    assert ">90%" in text
    assert ">10%<br>" in text
