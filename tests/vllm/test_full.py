"""Engines with no room: classes, admission limits, and what a caller is told."""

from pathlib import Path

import httpx
import redis

from routing.contracts.enums import RequestStatus, WorkClass
from routing.contracts.snapshot import bucket_of
from tests.gatewaying import ACME, row
from tests.stack import held, tenant, usage_events, wait_until
from tests.vllm.conftest import RunningVllm
from tests.vllm.serving import (
    Call,
    chat,
    directly,
    gateway_over,
    metrics,
    pool_of,
    snapshot_of,
    wait_load,
)

LONG = 7000  # near the whole context: outlasts what a test does meanwhile on any machine
TIGHT_IN_FLIGHT = 4  # of `tight_vllm`: one runs, three wait


def fill(engine: RunningVllm) -> list[Call]:
    """Take every place of the engine."""
    wait_load(engine, 0)
    calls = []
    for count in range(TIGHT_IN_FLIGHT):
        calls.append(directly(engine, f"full {count}", stream=True, max_tokens=LONG))
        wait_load(engine, 1, count)
    return calls


def clear(engine: RunningVllm, calls: list[Call]) -> None:
    """Give every place back."""
    for call in calls:
        call.hang_up()
    wait_load(engine, 0)


def test_a_higher_class_overtakes_a_lower_one_inside_the_engine(
    store: object, tmp_path: Path, tight_vllm: RunningVllm
) -> None:
    wait_load(tight_vllm, 0)
    acme = tenant("acme", default_class=WorkClass.INTERACTIVE)
    snapshot = snapshot_of(pool_of("p1", tight_vllm), tenants={"acme": acme})
    with gateway_over(tmp_path, snapshot) as gateway:
        blocker = directly(tight_vllm, "in the way", stream=True, max_tokens=LONG)
        blocker.wait_chunks(1)
        ended: list[str] = []
        calls = {}
        # The caller's own `priority` would turn the order round, were it passed on.
        for name, own in (("batch", -99), ("standard", 5), ("interactive", 99)):
            class_header = {"x-headrace-class": name}
            calls[name] = chat(gateway, name, class_header, priority=own, max_tokens=200)
            wait_load(tight_vllm, 1, len(calls))
        blocker.hang_up()

        def all_ended() -> bool:
            ended.extend(
                name for name, one in calls.items() if one.has_ended.is_set() and name not in ended
            )
            return len(ended) == len(calls)

        wait_until(all_ended, 90, "all answered")
    assert ended == ["interactive", "standard", "batch"]
    assert [one.status for one in calls.values()] == [200, 200, 200]


def test_a_full_engine_s_refusal_is_answered_by_another_replica(
    store: "redis.Redis[bytes]", tmp_path: Path, tight_vllm: RunningVllm, tiny_vllm: RunningVllm
) -> None:
    calls = fill(tight_vllm)
    before = metrics(tight_vllm)["vllm:admission_rejections_total"]
    pools = (pool_of("p1", tight_vllm), pool_of("p2", tiny_vllm))
    with gateway_over(tmp_path, snapshot_of(*pools)) as gateway:
        for is_stream in (False, True):
            call = chat(gateway, stream=is_stream).finish()
            assert call.status == 200, call.raw
        assert call.events[-1] == "[DONE]"

        def both() -> bool:
            return len(usage_events(store, ACME)) == 2 and held(store, ACME) == 0

        wait_until(both, 10, "two rows, nothing held")
        events = [event for _, event in usage_events(store, ACME)]
        for event in events:
            assert (event.status, event.pool, event.output_tokens) == ("ok", "p2", 16)
        assert events[0].attempts == 2
    assert metrics(tight_vllm)["vllm:admission_rejections_total"] > before
    clear(tight_vllm, calls)


def test_when_all_are_full_the_caller_is_told_when_to_come_back_and_pays_nothing(
    store: "redis.Redis[bytes]", tmp_path: Path, tight_vllm: RunningVllm
) -> None:
    calls = fill(tight_vllm)
    with gateway_over(tmp_path, snapshot_of(pool_of("p1", tight_vllm))) as gateway:
        for is_stream in (False, True):
            # More than would open a breaker, were full taken for broken.
            for _ in range(4):
                refused = chat(gateway, stream=is_stream).finish()
                assert refused.status == 503
                assert int(refused.headers["retry-after"]) >= 1
                error = refused.json["error"]
                assert (error["code"], error["type"]) == ("no_capacity", "overloaded_error")
                assert "send it again" in error["message"]
        wait_until(lambda: held(store, ACME) == 0, 10, "nothing held")
        spent = [event.spend_nanousd for _, event in usage_events(store, ACME)]
        assert set(spent) <= {0}
        clear(tight_vllm, calls)
        assert chat(gateway).finish().status == 200


def test_a_full_engine_goes_on_with_the_streams_it_has(
    store: "redis.Redis[bytes]", tmp_path: Path, tight_vllm: RunningVllm
) -> None:
    wait_load(tight_vllm, 0)
    with gateway_over(tmp_path, snapshot_of(pool_of("p1", tight_vllm))) as gateway:
        live = chat(gateway, "mine", stream=True, max_tokens=600)
        live.wait_chunks(1)
        others = [
            directly(tight_vllm, f"other {count}", max_tokens=LONG)
            for count in range(TIGHT_IN_FLIGHT - 1)
        ]
        wait_load(tight_vllm, 1, TIGHT_IN_FLIGHT - 1)
        page = httpx.get(f"{tight_vllm.url}/load", timeout=10, trust_env=False).json()
        assert page["server_load"] == TIGHT_IN_FLIGHT
        live.finish()
        assert live.events[-1] == "[DONE]"
        event = row(store)
        assert (event.status, event.output_tokens) == (RequestStatus.OK, 600)
        assert bucket_of(event.tenant_id) == ACME
    clear(tight_vllm, others)
