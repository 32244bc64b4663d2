"""A new replica is judged before the old one goes, and a person is waited for where that was asked.

Engines are real processes; what was tried on them stands in the store as the collector writes it,
here; `test_r23_rollouts_are_judged` has a gateway and a collector count real calls.
"""

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from django.utils import timezone

from capacity.models import Pool, Rollout, RolloutLane, RolloutStep
from capacity.rollouts import services
from capacity.rollouts.selectors import rollout_detail
from console.errors import InvalidInput
from console.models import AuditEvent
from routing.contracts.process import decode_gateway_status, encode_status
from routing.store import keys
from telemetry.stats.sketch import index_of
from telemetry.stats.tries import SPAN_MS, Tries, encode_tries
from tests import factories, rolling
from tests.rolling import ANA, SPEC, begin, live, settle, starts, until, until_step

pytestmark = pytest.mark.django_db
NEWER = {**SPEC, "max_num_seqs": 32}


@pytest.fixture(autouse=True)
def drivers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, store) -> Iterator[Path]:
    with rolling.own_drivers(tmp_path, monkeypatch):
        yield tmp_path


def tried(store: Any, **by_replica: tuple[int, int, float]) -> None:
    """What the collector has counted of late: (requests, failed, TTFT in seconds)."""
    span = int(timezone.now().timestamp() * 1000) // SPAN_MS - 1
    for name, (requests, failed, ttft_s) in by_replica.items():
        found = Tries(requests, failed, {9: {index_of(ttft_s): requests - failed}})
        store.hset(keys.replica_span(span), name.replace("_", "-"), encode_tries(found))


def gateway_gave_up_on(store: Any, *replicas: str) -> None:
    factories.beat(store)
    status = decode_gateway_status(store.hget(keys.GATEWAYS, "g0"))
    opened = dict.fromkeys(replicas, "failing")
    said = msgspec.structs.replace(status, open_breakers=opened)
    store.hset(keys.GATEWAYS, "g0", encode_status(said))


def shift_into_past(rollout_id: int, seconds: int) -> None:
    """As if the replica had taken work for so long."""
    lane = RolloutLane.objects.get(rollout_id=rollout_id, result="")
    earlier = timezone.now() - timedelta(seconds=seconds)
    RolloutLane.objects.filter(pk=lane.pk).update(step_since=earlier)
    RolloutStep.objects.filter(lane=lane, step="warm").update(begun_at=earlier)


def test_one_that_fails_its_calls_is_taken_back_at_once_with_the_figures(store) -> None:
    rolling.make_pool(2)
    rollout_id = begin(spec=NEWER, warm_s=3600, judge_requests=50)
    until_step(rollout_id, "warm")
    shift_into_past(rollout_id, 20)
    tried(store, p_2=(20, 14, 0.1), p_0=(30, 0, 0.1), p_1=(30, 1, 0.1))
    row = until(rollout_id, "rolled_back")
    assert "p-2: it failed 14 of 20 requests (70.0%), the old ones 1 of 60 (1.7%)" in row.cause
    lane = rollout_detail(rollout_id).lanes[0]
    assert (lane.result, lane.judgement.finding) == ("dropped", "failing")
    assert (lane.judgement.new.failed, lane.judgement.old.requests) == (14, 60)
    settle(lambda: len(live()) == 2)
    assert starts() == {"p-0": 1, "p-1": 1, "p-2": 1}
    assert Pool.objects.get().revision == 1
    told = AuditEvent.objects.get(act="rollout.rolling_back")
    assert "failed 14 of 20" in told.reason


def test_one_that_gateways_gave_up_on_is_taken_back_unless_the_old_ones_are_too(store) -> None:
    rolling.make_pool(1)
    rollout_id = begin(spec=NEWER, warm_s=3600, judge_requests=50)
    until_step(rollout_id, "warm")
    gateway_gave_up_on(store, "p-0", "p-1")
    rolling.work()
    assert Rollout.objects.get().state == "running"  # whatever this is, it is not the new one
    gateway_gave_up_on(store, "p-1")
    row = until(rollout_id, "rolled_back")
    assert "p-1: gateways stopped sending it work, it is failing" in row.cause


def test_one_that_is_slower_turns_back_when_it_is_judged_not_before(store) -> None:
    rolling.make_pool(1)
    rollout_id = begin(spec=NEWER, warm_s=3600, judge_requests=50)
    until_step(rollout_id, "warm")
    shift_into_past(rollout_id, 7300)
    tried(store, p_1=(80, 0, 0.4), p_0=(80, 0, 0.1))
    row = until(rollout_id, "rolled_back")
    assert "its TTFT p50 is 4" in row.cause
    assert "above the 1.25 times that are allowed" in row.cause
    assert rolling.steps_of(rollout_id, 1)[-2:] == ["judge", "dropped"]


def test_one_that_does_no_worse_goes_on_with_the_figures_at_its_step(store) -> None:
    rolling.make_pool(1)
    rollout_id = begin(spec=NEWER, judge_requests=50)
    until_step(rollout_id, "judge")
    assert rollout_detail(rollout_id).lanes[0].judgement.finding == "too_few"
    shift_into_past(rollout_id, 20)
    tried(store, p_1=(80, 0, 0.1), p_0=(80, 0, 0.1))
    until(rollout_id, "done")
    step = RolloutStep.objects.get(step="shift")
    assert "failed 0 of 80 requests" in step.note
    assert rollout_detail(rollout_id).lanes[0].judgement.finding == "fit"


def test_with_too_few_requests_it_goes_on_and_says_so(store) -> None:
    rolling.make_pool(1)
    rollout_id = begin(spec=NEWER, judge_requests=50, judge_limit_s=0)
    until(rollout_id, "done")
    note = RolloutStep.objects.get(step="shift").note
    assert note.startswith("not judged: 0 requests reached it and 0 the old ones, 50 of each")


def test_with_too_few_requests_it_holds_where_asked_and_a_person_lets_it_pass(store) -> None:
    rolling.make_pool(1)
    rollout_id = begin(spec=NEWER, judge_requests=50, judge_limit_s=0, on_too_few="hold")
    row = until(rollout_id, "paused")
    assert "p-1: 0 requests reached it" in row.cause
    assert [one.name for one in live()] == ["p-0", "p-1"]
    services.resume(rollout_id=rollout_id, actor=ANA, reason="a quiet night")
    row = until(rollout_id, "done")
    assert row.cause == ""


def test_a_pause_by_hand_lets_nothing_pass_unjudged(store) -> None:
    rolling.make_pool(1)
    rollout_id = begin(spec=NEWER, judge_requests=50, judge_limit_s=3600)
    until_step(rollout_id, "judge")
    services.pause(rollout_id=rollout_id, actor=ANA)
    services.resume(rollout_id=rollout_id, actor=ANA)
    rolling.work()
    assert RolloutLane.objects.get().step == "judge"


def test_it_waits_for_a_person_after_as_many_replicas_as_asked(store) -> None:
    rolling.make_pool(3)
    rollout_id = begin(spec=NEWER, pause_after=(2, 1))
    for replaced in (1, 2):
        row = until(rollout_id, "paused")
        assert row.cause == f"{replaced} of 3 replicas are replaced, as was asked"
        rolling.work()
        assert RolloutLane.objects.filter(result="done").count() == replaced
        detail = rollout_detail(rollout_id)
        assert detail.progress_ratio == pytest.approx(replaced / 3)
        assert detail.eta_s is None
        services.resume(rollout_id=rollout_id, actor=ANA)
        left = rollout_detail(rollout_id)
        assert left.eta_s is not None
        assert left.is_own_pace
    until(rollout_id, "done")
    assert rollout_detail(rollout_id).progress_ratio == 1.0
    # The next one knows how long the last one took before its first lane is done.
    following = begin(spec=SPEC)
    assert rollout_detail(following).eta_s is not None
    assert not rollout_detail(following).is_own_pace


def test_settings_out_of_range_are_refused_at_their_field(store) -> None:
    rolling.make_pool(1)
    for plan in (
        {"judge_requests": -1},
        {"judge_limit_s": 3601},
        {"most_ttft_ratio": 0.9},
        {"most_ttft_ratio": float("nan")},
        {"most_error_excess_ratio": 1.1},
        {"on_too_few": "shrug"},
        {"pause_after": (1,)},
        {"pause_after": tuple(range(1, 22))},
    ):
        with pytest.raises(InvalidInput) as refused:
            begin(**plan)
        assert [refused.value.field] == list(plan)
    assert not Rollout.objects.exists()
