"""Why is P99 up, what caused the bill: against queries of the rows, on days with a known cause."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import connection
from django.utils import timezone

from console.pages.verdicts import HOUR_BEFORE, compared, verdict
from routing.contracts.ids import day_of, uuid7
from tenants.ledger.bill import bill
from tenants.ledger.slow import slow_report
from tenants.models import ApiKey, Usage
from tests import factories
from tests.factories import World

pytestmark = pytest.mark.django_db
LENGTH, APART = timedelta(minutes=15), timedelta(hours=1)


@pytest.fixture
def world(store) -> World:
    made = World()
    for slug in ("acme", "globex"):
        factories.make_tenant(made, slug, slug)
    return made


def serve(
    world: World, slug: str, count: int, *, ago: timedelta, ttft_ms: int, **fields: Any
) -> None:
    """Rows that started evenly over ten minutes that ended `ago`."""
    key = ApiKey.objects.get(pk=world.keys[slug].id)
    made = []
    for number in range(count):
        start = timezone.now() - ago - timedelta(seconds=600 * number / count + 1)
        request_id = uuid7(
            int(start.timestamp() * 1000), hash((slug, number, ttft_ms)) & (2**74 - 1)
        )
        first = start + timedelta(milliseconds=ttft_ms)
        values: dict[str, Any] = {
            "day": day_of(request_id), "request_id": request_id, "kind": "s",
            "tenant_id": key.tenant_id, "key_id": key.pk, "project_id": key.project_id,
            "model_asked": "m", "model": "m", "pool": "p-a", "replica": "r0", "region": "eu",
            "work_class": "standard", "status": "ok", "usage_source": "reported",
            "is_suspicious": False, "is_stream": True, "http_status": 200, "error_code": "",
            "started_at": start, "first_token_at": first, "ended_at": first + timedelta(seconds=1),
            "input_tokens": 1000, "cached_tokens": 500, "output_tokens": 100,
            "reasoning_tokens": 0, "spend_nanousd": 1000, "held_input_tokens": 0,
            "held_output_tokens": 0, "held_nanousd": 0, "attempts": 1, "policy": "main@1",
            "price_version": 1, "gateway": "g0", "upstream_request_id": "", "task_id": "",
            "task_kind": "", "step": "", "hops_us": {}, "legs": [],
        }  # fmt: skip
        made.append(Usage(**{**values, **fields}))
    with connection.cursor() as cursor:
        for day in {row.day for row in made}:
            cursor.execute("SELECT headrace_ensure_partition('tenants_usage', %s)", [day])
    Usage.objects.bulk_create(made)


def test_a_noisy_tenant_on_one_replica_is_named(world: World) -> None:
    serve(world, "acme", 200, ago=APART, ttft_ms=200)
    serve(world, "globex", 100, ago=APART, ttft_ms=210, replica="r1")
    serve(world, "acme", 200, ago=timedelta(), ttft_ms=205)
    serve(
        world, "globex", 100, ago=timedelta(), ttft_ms=4000, replica="r1", input_tokens=9000,
        cached_tokens=0,
    )  # fmt: skip
    report = slow_report(until=timezone.now(), length=LENGTH, apart=APART)
    assert (report.now.count, report.before.count) == (300, 300)
    assert (report.now.ttft_p99_ms, report.before.ttft_p99_ms) == (4000, 210)
    assert report.tail == 100
    assert report.suspects["tenant"][0].subject == str(world.tenants["globex"])
    assert report.suspects["replica"][0].subject == "r1"
    assert report.now.hit_ratio == pytest.approx(100_000 / 1_100_000)
    names = {("tenant", str(world.tenants["globex"])): "globex"}
    found = verdict(report, names)
    assert found.word == "up"
    urls = {step.url for step in found.steps}
    assert {"/tenants/globex/", "/fleet/", "/capacity/lab/", "/audit/"} <= urls
    words = " ".join(found.reasons)
    assert "Tenant globex has 100 %" in words
    assert "Replica r1" in words
    assert "prefix hits fell from 50 % to 9 %" in words
    assert "mean prompt grew" in words


def test_what_did_not_change_is_not_up_and_few_requests_are_unknown(world: World) -> None:
    serve(world, "acme", 100, ago=APART, ttft_ms=200)
    serve(world, "acme", 29, ago=timedelta(), ttft_ms=900)
    found = verdict(slow_report(until=timezone.now(), length=LENGTH, apart=APART), {})
    assert found.word == "unknown"
    assert "fewer than 30" in found.headline
    serve(world, "globex", 100, ago=timedelta(), ttft_ms=201)
    steady = slow_report(until=timezone.now(), length=timedelta(minutes=15), apart=APART)
    assert steady.now.count == 129


def test_without_an_hour_before_a_nearer_window_is_compared_with(world: World) -> None:
    def asked() -> tuple[int, int, str]:
        report, against = compared(until=timezone.now(), length=LENGTH, words="15 min")
        return report.now.count, report.before.count, against

    serve(world, "acme", 25, ago=timedelta(), ttft_ms=900)
    assert asked() == (25, 0, HOUR_BEFORE)  # too few to say anything
    serve(world, "globex", 75, ago=timedelta(), ttft_ms=900)
    now, before, against = asked()  # evenly over ten minutes, the first one a second ago
    assert (now + before, against) == (100, "in the 5 min before the last 5")
    assert min(now, before) > 40
    serve(world, "acme", 40, ago=timedelta(minutes=18), ttft_ms=300)
    assert asked() == (100, 40, "in the 15 min before")
    report, against = compared(until=timezone.now(), length=LENGTH, words="15 min")
    found = verdict(report, {}, against)
    assert found.headline == "P99 is up: TTFT p99 900 ms against 300 ms in the 15 min before."
    assert "/capacity/forecast/" in {step.url for step in found.steps}  # the median rose too
    serve(world, "acme", 40, ago=APART, ttft_ms=800)
    assert asked() == (100, 40, HOUR_BEFORE)


def test_a_window_reads_its_own_rows_only(world: World) -> None:
    serve(world, "acme", 50, ago=timedelta(minutes=25), ttft_ms=9000)  # between the two windows
    serve(world, "acme", 40, ago=timedelta(), ttft_ms=100)
    report = slow_report(until=timezone.now(), length=LENGTH, apart=APART)
    assert (report.now.count, report.before.count) == (40, 0)
    assert verdict(report, {}).word == "unknown"


def rollup(world: World, slug: str, at: datetime, **fields: Any) -> None:
    key = ApiKey.objects.get(pk=world.keys[slug].id)
    values = {
        "model": "m", "pool": "p", "work_class": "standard", "region": "eu", "requests": 1,
        "input_tokens": 100, "output_tokens": 10, "spend_nanousd": 0, **fields,
    }  # fmt: skip
    for grain, start in (
        ("m", at.replace(second=0, microsecond=0)),
        ("h", at.replace(minute=0, second=0, microsecond=0)),
        ("d", at.replace(hour=0, minute=0, second=0, microsecond=0)),
    ):
        with connection.cursor() as cursor:
            cursor.execute(
                "INSERT INTO tenants_usagerollup AS r (grain, start_at, tenant_id, project_id,"
                " key_id, model, pool, work_class, region, requests, failed, cancelled,"
                " input_tokens, cached_tokens, output_tokens, spend_nanousd)"
                " VALUES (%s,%s,%s,%s,%s,%s,%s,%s,%s,%s,0,0,%s,0,%s,%s)"
                " ON CONFLICT (grain, start_at, tenant_id, project_id, key_id, model, pool,"
                " work_class, region) DO UPDATE SET requests = r.requests + excluded.requests,"
                " input_tokens = r.input_tokens + excluded.input_tokens,"
                " output_tokens = r.output_tokens + excluded.output_tokens,"
                " spend_nanousd = r.spend_nanousd + excluded.spend_nanousd",
                [
                    grain, start, key.tenant_id, key.project_id, key.pk, values["model"],
                    values["pool"], values["work_class"], values["region"], values["requests"],
                    values["input_tokens"], values["output_tokens"], values["spend_nanousd"],
                ],
            )  # fmt: skip


def test_the_bill_names_who_moved_and_both_periods_are_exact(world: World) -> None:
    until = datetime(2026, 5, 3, 14, 37, tzinfo=UTC)
    day = timedelta(days=1)
    for hours in range(48):
        at = until - timedelta(hours=hours, minutes=20)
        rollup(world, "acme", at, spend_nanousd=100)
        is_now = hours < 24
        rollup(
            world, "globex", at, spend_nanousd=900 if is_now else 50,
            input_tokens=1000 if is_now else 100, model="big", work_class="batch",
        )  # fmt: skip
    found = bill(until=until, length=day)
    with connection.cursor() as cursor:
        for side, start in ((found.now, until - day), (found.before, until - 2 * day)):
            cursor.execute(
                "SELECT sum(spend_nanousd), sum(requests), sum(input_tokens + output_tokens)"
                " FROM tenants_usagerollup WHERE grain = 'm' AND start_at >= %s AND start_at < %s",
                [start, start + day],
            )
            row = cursor.fetchone()
            assert (side.spend_nanousd, side.requests, side.tokens) == tuple(map(int, row))
    assert found.change_nanousd == 24 * 850
    first = found.movers["tenant"][0]
    assert first.subject == str(world.tenants["globex"])
    assert (first.now.spend_nanousd, first.before.spend_nanousd) == (24 * 900, 24 * 50)
    assert first.tokens_ratio == pytest.approx(1010 / 110)
    assert found.movers["model"][0].subject == "big"
    assert found.movers["class"][0].subject == "batch"
    assert found.movers["key"][0].subject == str(world.keys["globex"].id)
    for dimension in ("tenant", "model", "key", "class"):
        movers = found.movers[dimension]
        assert sum(one.change_nanousd for one in movers) == found.change_nanousd, dimension
