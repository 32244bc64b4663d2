"""How a lane's new replica compares with the old ones now, and the note of it on the lane."""

from dataclasses import asdict
from datetime import timedelta

from django.utils import timezone

from capacity.models import OnTooFew, Replica, Rollout, RolloutLane, RolloutState
from capacity.rollouts.rules.judging import UNKNOWN, Bar, Judgement, judge, summed
from capacity.rollouts.rules.lanes import Step
from telemetry.replicas.selectors import ejected, tries_of


def bar_of(rollout: Rollout) -> Bar:
    """What this rollout's new replicas are judged by."""
    return Bar(
        requests=rollout.judge_requests,
        limit_s=rollout.judge_limit_s,
        holds_on_too_few=rollout.on_too_few == OnTooFew.HOLD,
        ttft_ratio=rollout.most_ttft_ratio,
        error_excess_ratio=rollout.most_error_excess_ratio,
    )


def judged(rollout: Rollout, lane: RolloutLane, bar: Bar) -> Judgement | None:
    """The comparison while the new replica serves beside the old ones.

    None where there is nothing to judge: it does not serve yet, judging is switched off, a person
    let it pass, or the rollout goes back to what the pool ran before.
    """
    if lane.step not in (Step.WARM, Step.JUDGE) or lane.new is None or not bar.requests:
        return None
    if lane.is_waived or rollout.state != RolloutState.RUNNING:
        return None
    begun = lane.steps.filter(step=Step.WARM).values_list("begun_at", flat=True).first()
    if begun is None:
        return None
    late = begun + timedelta(seconds=rollout.warm_s / 2)
    old = Replica.objects.filter(pool=rollout.pool, removed_at=None).exclude(revision=lane.revision)
    names = [lane.new.name, *old.values_list("name", flat=True)]
    now_ms = int(timezone.now().timestamp() * 1000)
    found = [
        tries_of(names, since_ms=int(since.timestamp() * 1000), until_ms=now_ms)
        for since in (begun, late)
    ]
    whole, recent = found
    if whole is None or recent is None:
        return UNKNOWN
    shut = ejected(names)
    is_ours_alone = not all(name in shut for name in names[1:])
    return judge(
        (whole[names[0]], recent[names[0]]),
        (summed(whole, names[1:]), summed(recent, names[1:])),
        bar,
        shut.get(names[0], "") if is_ours_alone else "",
    )


def note_judgement(lane: RolloutLane, found: Judgement | None) -> None:
    """Keep the comparison with the lane, unless it went on meanwhile."""
    if found is None:
        return
    noted = asdict(found) | {"at": timezone.now().isoformat()}
    if RolloutLane.objects.filter(pk=lane.pk, step=lane.step).update(judgement=noted):
        lane.judgement = noted
