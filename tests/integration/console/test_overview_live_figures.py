"""The overview's live figures and their last hour equal queries over rows and engines' states."""

import asyncio
import random
import time
from collections import defaultdict
from datetime import timedelta
from math import floor

import pytest
from django.test import Client
from django.utils import timezone
from redis.asyncio import Redis

from capacity.fleet.grid import sums_of
from capacity.fleet.selectors import fleet_page
from console.pages.figures import GOODPUT_MINUTES, HISTORY_MINUTES, headline
from routing.contracts.endpoint_state import EndpointState, decode_pool_state
from routing.store import keys
from telemetry.collector.fold import recall
from telemetry.collector.publish import History, Round, publish
from telemetry.slos.selectors import objectives
from tenants.models import Usage
from tests import factories
from tests.collecting import FakeGateway
from tests.factories import World
from tests.overview import folded, frame_of, make_traffic, ms, rows, words_of

pytestmark = pytest.mark.django_db
WITHIN = 0.021  # what a bin of a sketch spans, to both sides
AHEAD_MS = -60_000  # so that a slow machine does not let a state grow old meanwhile
LATE_S = (5, 45)  # requests of the last seconds, clear of the window's edge


@pytest.fixture
def world(store, settings) -> World:
    made = make_traffic(store, settings.REDIS_URL)
    draw = random.Random(11)
    gateway = FakeGateway(store, gateway_id="g1")
    for number in range(30):
        start = timezone.now() - timedelta(seconds=draw.uniform(*LATE_S))
        (request_id,) = factories.make_usage(
            made, ("acme", "globex")[number % 2], 1, status="ok", pool="p-a", started_at=start,
            work_class=("standard", "interactive")[number % 3 == 0],
            first_token_at=start + timedelta(seconds=0.05 * 1.2**number),
        )  # fmt: skip
        gateway.report(frame_of(Usage.objects.get(request_id=request_id), draw), at_ms=ms(start))
    folded(settings.REDIS_URL)
    published(settings.REDIS_URL)
    return made


def published(url: str) -> None:
    """One round of the collector's own publishing, over what is folded."""

    async def once() -> None:
        now_ms = time.time_ns() // 1_000_000
        async with Redis.from_url(url) as client:
            trailing, spend = await recall(client, now_ms)
            trailing.expire(now_ms // 1000)
            await publish(client, Round("e", 1, now_ms, {}, trailing, spend, now_ms, {}), History())

    asyncio.run(once())


def lower_quantile(values: list[float], quantile: float) -> float:
    return sorted(values)[floor(quantile * (len(values) - 1))]


TIMES = """
SELECT extract(epoch FROM first_token_at - started_at)::float,
 floor(extract(epoch FROM started_at) / 60)::int, model, work_class, spend_nanousd
FROM tenants_usage WHERE kind <> 'v' AND started_at >= %s ORDER BY started_at
"""


def test_ttft_p95_is_that_of_the_rows_of_the_last_minute(world: World) -> None:
    found = headline([], [], [])
    since = timezone.now() - timedelta(seconds=LATE_S[1] + 5)
    seconds = [row[0] for row in rows(TIMES, since) if row[0] is not None]
    assert len(seconds) == 30
    assert found.ttft_p95_ms == pytest.approx(1000 * lower_quantile(seconds, 0.95), rel=WITHIN)
    assert found.age_s is not None
    assert found.age_s < 60


def test_each_minute_of_the_last_hour_is_that_of_its_rows(world: World) -> None:
    found = headline([], [], [])
    now_minute = int(timezone.now().timestamp()) // 60
    times, counts, spends = defaultdict(list), defaultdict(int), defaultdict(int)
    for seconds, minute, _, _, spend in rows(TIMES, timezone.now() - timedelta(hours=2)):
        counts[minute] += 1
        spends[minute] += spend
        if seconds is not None:
            times[minute].append(seconds)
    assert len(found.ttft) == len(found.refused) == len(found.spend) == HISTORY_MINUTES
    for at, minute in enumerate(range(now_minute - HISTORY_MINUTES, now_minute)):
        assert found.refused[at] == counts[minute]  # one refusal came with each request
        assert found.spend[at] == spends[minute]
        if times[minute]:
            wanted = 1000 * lower_quantile(times[minute], 0.95)
            assert found.ttft[at] == pytest.approx(wanted, rel=WITHIN)
        else:
            assert found.ttft[at] is None
    assert sum(counts.values()) == 110
    assert found.spend_hour_nanousd == sum(spends.values())


def test_each_class_is_that_of_its_rows(world: World) -> None:
    factories.make_objective(world)
    promised = objectives()
    found = {(row.model, row.work_class): row for row in headline([], promised, []).classes}
    now_minute = int(timezone.now().timestamp()) // 60
    counts: dict[tuple[str, str], int] = defaultdict(int)
    times: dict[tuple[str, str], dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for seconds, minute, model, work_class, _ in rows(TIMES, timezone.now() - timedelta(hours=2)):
        if minute >= now_minute - GOODPUT_MINUTES:
            counts[model, work_class] += 1
        if seconds is not None:
            times[model, work_class][minute].append(seconds)
    assert {key: row.requests for key, row in found.items()} == counts
    assert len(counts) == 2
    for key, row in found.items():
        of_all = [one for values in times[key].values() for one in values]
        assert row.ttft_p95_ms == pytest.approx(1000 * lower_quantile(of_all, 0.95), rel=WITHIN)
        for at, minute in enumerate(range(now_minute - HISTORY_MINUTES, now_minute)):
            values = times[key][minute]
            said = row.history[at]
            assert (said is None) == (not values)
            if said is not None:
                assert said == pytest.approx(1000 * lower_quantile(values, 0.95), rel=WITHIN)


def states(store, *pools: str) -> list[EndpointState]:
    """What the collector reports of every replica, as it lies in the store."""
    found = [decode_pool_state(store.get(keys.pool_state(pool))) for pool in pools]
    return [state for pool in found for state in pool.endpoints]


def test_queue_age_waiting_and_kv_are_those_of_the_engines_states(world: World, store) -> None:
    factories.make_pools(world, {"p-b": 3, "p-c": 1})
    factories.scrape(
        store, "p-a", age_ms=AHEAD_MS,
        r0={"queue_age_s": 4.0, "waiting": 3, "kv_usage_ratio": 0.61},
        r1={"queue_age_s": 0.0, "waiting": 0, "kv_usage_ratio": 0.93},
    )  # fmt: skip
    factories.scrape(
        store, "p-b", age_ms=AHEAD_MS,
        r0={"queue_age_s": 12.3, "waiting": 5, "kv_usage_ratio": 0.5, "health": "hung"},
        r1={"queue_age_s": None, "waiting": None, "kv_usage_ratio": None},
        r2={"queue_age_s": 70.0, "waiting": 9, "kv_usage_ratio": 0.99, "health": "lost"},
    )  # fmt: skip
    factories.scrape(store, "p-c", age_ms=60_000, r0={"queue_age_s": 99.0, "waiting": 44})
    told = [one for one in states(store, "p-a", "p-b") if one.health in ("ok", "hung")]
    age_s = max(one.queue_age_s for one in told if one.queue_age_s is not None)
    waiting = sum(one.waiting for one in told if one.waiting is not None)
    fullest = max(one.kv_usage_ratio for one in told if one.kv_usage_ratio is not None)
    assert (age_s, waiting, fullest) == (12.3, 8, 0.93)  # lost and silent ones are left out

    sums = [sums_of(pool) for pool in fleet_page(limit=50).rows]
    found = headline(sums, [], [one.queue_age_s for one in told])
    assert (found.queue_age_s, found.waiting, found.kv_max_ratio) == (age_s, waiting, fullest)
    client = Client()
    client.force_login(world.people["ola"])
    text = words_of(client.get("/").text)
    assert f"Queue age {age_s:.1f} s {waiting} waiting; the oldest of them" in text
    assert f"KV max {fullest * 100:.0f} %" in text
    for row in sums:
        fresh = [one for one in states(store, row.pool.name) if one in told]
        assert f"{row.pool.name} " in text
        assert f"{len(fresh)} of {len(row.pool.replicas)} fresh" in text
