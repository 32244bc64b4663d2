"""Minutes from the store to PostgreSQL and back as series."""

import asyncio
import time
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import redis
from redis.asyncio import Redis

from console.errors import InvalidInput
from console.web.store import pooled_client as console_store
from routing.store import keys
from telemetry.collector.fold import fold
from telemetry.models import SliceMinute
from telemetry.slices import services
from telemetry.slices.selectors import SliceFilter, recent_total, series
from tests.collecting import FakeGateway, traffic
from tests.stack import store_server

pytestmark = pytest.mark.django_db
EVERY = SliceFilter(tenant_ids=None)


@pytest.fixture
def store(tmp_path: Path, settings) -> Iterator["redis.Redis[bytes]"]:
    with store_server(tmp_path / "store") as url, closing(redis.Redis.from_url(url)) as client:
        settings.REDIS_URL = url
        console_store.cache_clear()
        yield client
        console_store.cache_clear()


def folded(url: str) -> None:
    async def once() -> None:
        async with Redis.from_url(url) as client:
            await fold(client, time.time_ns() // 1_000_000)

    asyncio.run(once())


def at(minutes_ago: int) -> int:
    """Milliseconds in the middle of a minute in the past."""
    return ((time.time_ns() // 60_000_000_000) - minutes_ago) * 60_000 + 30_000


def rows() -> list[tuple[int, str, int, int]]:
    found = SliceMinute.objects.order_by("minute_at", "tenant_id", "model")
    return list(found.values_list("tenant_id", "model", "requests", "spend_nanousd"))


def test_roll_up_writes_ended_minutes_once_and_again_when_a_late_report_comes(
    store: "redis.Redis[bytes]", settings
) -> None:
    gateway = FakeGateway(store)
    gateway.report(traffic("1", (0.1,), spend_nanousd=7), traffic("2", (0.2,)), at_ms=at(3))
    gateway.report(traffic("nobody", (0.1,)), at_ms=at(3))
    gateway.report(traffic("1", (0.1,)))
    folded(settings.REDIS_URL)
    assert services.roll_up().rows == 2
    assert rows() == [(1, "m", 1, 7), (2, "m", 1, 0)]
    assert services.roll_up().minutes == 0
    gateway.report(traffic("1", (0.3,), spend_nanousd=5), at_ms=at(3))
    folded(settings.REDIS_URL)
    services.roll_up()
    services.roll_up()
    assert rows() == [(1, "m", 2, 12), (2, "m", 1, 0)]


def test_a_report_folded_during_the_roll_up_is_written_by_the_next(
    store: "redis.Redis[bytes]", settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway = FakeGateway(store)
    gateway.report(traffic("1", (0.1,)), at_ms=at(2))
    folded(settings.REDIS_URL)
    write = services._write

    def write_then_late_report(minute: int, sums: object) -> int:
        written = write(minute, sums)  # type: ignore[arg-type]
        gateway.report(traffic("1", (0.1,)), at_ms=at(2))
        folded(settings.REDIS_URL)
        return written

    monkeypatch.setattr(services, "_write", write_then_late_report)
    services.roll_up()
    monkeypatch.undo()
    assert rows() == [(1, "m", 1, 0)]
    services.roll_up()
    assert rows() == [(1, "m", 2, 0)]


def test_an_expired_minute_does_not_erase_its_rows(store: "redis.Redis[bytes]", settings) -> None:
    FakeGateway(store).report(traffic("1", (0.1,)), at_ms=at(2))
    folded(settings.REDIS_URL)
    services.roll_up()
    minute = at(2) // 60_000
    store.delete(keys.slice_minute(minute))
    store.zadd(keys.SLICE_DIRTY, {str(minute): 99})
    services.roll_up()
    assert rows() == [(1, "m", 1, 0)]
    assert store.zcard(keys.SLICE_DIRTY) == 0


def test_series_is_the_same_before_and_after_the_roll_up(
    store: "redis.Redis[bytes]", settings
) -> None:
    gateway = FakeGateway(store)
    gateway.report(traffic("1", (0.1,) * 50, spend_nanousd=3), at_ms=at(5))
    gateway.report(traffic("2", (1.0,) * 50), traffic("1", (0.5,), model="other-m"), at_ms=at(2))
    gateway.report(traffic("1", (0.1,)))
    folded(settings.REDIS_URL)
    since_s, until_s = at(10) // 1000, at(0) // 1000 + 60

    def seen(wanted: SliceFilter) -> list[object]:
        return series(wanted, since_s=since_s, until_s=until_s)[1]

    filters = [EVERY, SliceFilter(frozenset({1})), SliceFilter(None, model="other-m")]
    before = [seen(wanted) for wanted in filters]
    services.roll_up()
    assert [seen(wanted) for wanted in filters] == before
    counts = [sum(point.requests for point in points) for points in before]  # type: ignore[attr-defined]
    assert counts == [102, 52, 1]
    assert seen(SliceFilter(frozenset())) == seen(SliceFilter(None, model="no such"))
    step_s, (whole, *_) = series(EVERY, since_s=since_s, until_s=until_s, step_s=1200)
    assert step_s == 1200
    assert whole.ttft_count == 102
    assert whole.ttft_p95_s == pytest.approx(1.0, rel=0.011)


def test_a_series_has_a_bound(store: "redis.Redis[bytes]", monkeypatch) -> None:
    with pytest.raises(InvalidInput):
        series(EVERY, since_s=0, until_s=3600 * 24 * 30, step_s=60)
    assert series(EVERY, since_s=0, until_s=3600 * 24 * 30)[0] > 60
    when = datetime.now(UTC).replace(second=0, microsecond=0)
    SliceMinute.objects.bulk_create(
        SliceMinute(minute_at=when, tenant_id=n, model="m", pool="p", work_class="batch")
        for n in range(3)
    )
    monkeypatch.setattr("telemetry.slices.selectors.ROWS_MAX", 2)
    with pytest.raises(InvalidInput):
        series(EVERY, since_s=int(when.timestamp()), until_s=int(when.timestamp()) + 60)


def test_recent_total_reads_the_total_alone(store: "redis.Redis[bytes]", settings) -> None:
    FakeGateway(store).report(traffic("1", (0.1,) * 40), traffic("2", (0.1,) * 2), at_ms=at(3))
    folded(settings.REDIS_URL)
    points = recent_total(15)
    assert len(points) == 16
    assert [point.requests for point in points if point.requests] == [42]
    assert next(point for point in points if not point.requests).ttft_p95_s is None


def test_old_minutes_are_dropped_in_bounded_steps(store, monkeypatch) -> None:
    now = datetime.now(UTC)
    SliceMinute.objects.bulk_create(
        SliceMinute(
            minute_at=now - timedelta(days=days), tenant_id=1, model="m", pool="p", work_class="b"
        )
        for days in (1, 15, 16, 17)
    )
    monkeypatch.setattr(services, "DROPPED_MAX", 2)
    assert services.drop_old() == 2
    assert services.drop_old() == 1
    assert SliceMinute.objects.count() == 1
