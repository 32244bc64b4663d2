"""What runs by the clock, and the database schedule that beat reads.

An entry only queues a job (deduplicated), so two beats or a repeated message cost nothing.
"""

import json
from dataclasses import dataclass

from django.db import transaction
from django_celery_beat.models import IntervalSchedule, PeriodicTask, PeriodicTasks

from console.jobs.rules import ENQUEUE_TASK, POLL_TASK

_DAY_S = 24 * 3600
_OWNED = "headrace: "  # names of our entries start so; others are left alone


@dataclass(frozen=True, slots=True)
class Entry:
    """One scheduled task: every `every_s` seconds; a message not taken by then is dropped."""

    name: str
    every_s: int
    task: str
    args: tuple[str, ...] = ()


ENTRIES = (
    Entry("poll jobs", 5, POLL_TASK),
    Entry("reconcile pools", 5, ENQUEUE_TASK, ("reconcile_pools",)),
    Entry("advance rollouts", 5, ENQUEUE_TASK, ("advance_rollouts",)),
    Entry("evaluate playbooks", 5, ENQUEUE_TASK, ("evaluate_playbooks",)),
    Entry("push snapshot", 30, ENQUEUE_TASK, ("push_snapshot",)),
    Entry("push overrides", 30, ENQUEUE_TASK, ("push_overrides",)),
    Entry("end quota grants", 15, ENQUEUE_TASK, ("end_quota_grants",)),
    Entry("roll up slices", 60, ENQUEUE_TASK, ("roll_up_slices",)),
    Entry("judge objectives", 30, ENQUEUE_TASK, ("judge_objectives",)),
    Entry("sample pools", 60, ENQUEUE_TASK, ("sample_pools",)),
    Entry("issue due reports", 60, ENQUEUE_TASK, ("issue_due_reports",)),
    Entry("reconcile ledger", 600, ENQUEUE_TASK, ("reconcile_ledger",)),
    Entry("calibrate pools", 600, ENQUEUE_TASK, ("calibrate_pools",)),
    Entry("forecast demand", 3600, ENQUEUE_TASK, ("forecast_demand",)),
    Entry("drop old partitions", _DAY_S, ENQUEUE_TASK, ("drop_old_partitions",)),
)


ROUTINE_KINDS = frozenset(kind for entry in ENTRIES for kind in entry.args)


@transaction.atomic
def ensure_schedule() -> bool:
    """Make the database schedule hold exactly our entries; returns whether anything changed.

    Safe to call at every start. Whether an entry is enabled stays as a person set it.
    """
    changed = False
    for entry in ENTRIES:
        interval, _ = IntervalSchedule.objects.get_or_create(
            every=entry.every_s, period=IntervalSchedule.SECONDS
        )
        wanted = {
            "task": entry.task,
            "interval_id": interval.pk,
            "args": json.dumps(list(entry.args)),
            "expire_seconds": entry.every_s,
        }
        row = PeriodicTask.objects.filter(name=_OWNED + entry.name).first()
        if row is None:
            PeriodicTask.objects.create(name=_OWNED + entry.name, **wanted)
        elif any(getattr(row, name) != value for name, value in wanted.items()):
            for name, value in wanted.items():
                setattr(row, name, value)
            row.save()
        else:
            continue
        changed = True
    names = [_OWNED + entry.name for entry in ENTRIES]
    gone, _ = PeriodicTask.objects.filter(name__startswith=_OWNED).exclude(name__in=names).delete()
    if changed or gone:
        PeriodicTasks.update_changed()
    return changed or bool(gone)
