"""Compare holds, counters and ledger of all tenants; repair what differs; keep what was found."""

import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict

from django.conf import settings
from django.db import DatabaseError, transaction
from django.utils import timezone

from console.audit.rules import SYSTEM, Actor
from console.audit.services import record
from console.errors import InvalidInput
from console.jobs.services import enqueue
from routing.store.counters import StoreLost, StoreSession, masters
from routing.store.inspect import BucketKeys, bucket_keys
from tenants.ledger.retention import overdue_days
from tenants.models import Reconciliation
from tenants.reconcile.counters import Act, booked_buckets, check_bucket, repair_holds
from tenants.reconcile.parked import check_parked
from tenants.reconcile.rows import check_rows
from tenants.reconcile.rules import Check, Report
from tenants.reconcile.selectors import RunView, run_of

logger = logging.getLogger(__name__)

JOB_KIND = "reconcile_ledger"
SCHEDULED_HOURS = 2  # rows looked at by the clock: twelve runs see each
ASKED_HOURS = 48  # and when a person asks
MAX_HOURS = 24 * 35  # minute rollups are kept no longer
MAX_ACTS = 500  # kept of one run
RUNS_KEPT = 500


def reconcile(
    *,
    is_repair: bool = False,
    hours: int = ASKED_HOURS,
    actor: Actor = SYSTEM,
    store_url: str = "",
) -> RunView:
    """Look at everything; with `is_repair` correct it, then look again. Returns the kept run.

    Safe to repeat and while traffic runs. A store or database that goes away ends the run: what it
    did is committed, `trouble` says why the rest was not looked at.
    """
    started_s = time.monotonic()
    if not 1 <= hours <= MAX_HOURS:
        raise InvalidInput(f"Hours lie between 1 and {MAX_HOURS}.", field="hours")
    report, acts, trouble = Report(), list[Act](), ""
    try:
        with ExitStack() as stack:
            sessions = []
            for url in masters(store_url or settings.REDIS_URL):
                sessions.append(StoreSession.open(url))
                stack.callback(sessions[-1].close)
            if is_repair:
                acts = _repair(sessions, hours, actor)
            _check(sessions, hours, report)
    except (StoreLost, DatabaseError) as error:
        logger.warning("reconcile ended early: %s", error)
        trouble = str(error)[:300]
    row = Reconciliation.objects.create(
        at=timezone.now(),
        took_ms=int((time.monotonic() - started_s) * 1000),
        is_repair=is_repair,
        by=actor.label[:150],
        count=sum(found.count for found in report.lines.values()),
        lines=report.rows(),
        acts=[asdict(act) for act in acts[:MAX_ACTS]],
        trouble=trouble,
    )
    Reconciliation.objects.filter(pk__lte=row.pk - RUNS_KEPT).delete()
    return run_of(row)


def _check(sessions: Sequence[StoreSession], hours: int, report: Report) -> None:
    for session, bucket, names in _in_use(sessions):
        check_bucket(session, bucket, names, report, None)
    check_rows(hours, report, None)
    check_parked(report, None)
    for day in overdue_days():
        report.lines[Check.KEPT].add(f"{day}: the worker's log says why")


def _repair(sessions: Sequence[StoreSession], hours: int, actor: Actor) -> list[Act]:
    """Causes before effects: holds end, parked entries become rows, then counters follow."""
    found = Report()  # what is left is found by the look afterwards
    acts: list[Act] = []
    for session, bucket, names in _in_use(sessions):
        acts += repair_holds(session, bucket, names, actor)
    acts += check_parked(found, actor)
    acts += check_rows(hours, found, actor)
    for session, bucket, names in _in_use(sessions):
        acts += check_bucket(session, bucket, names, found, actor)
    return acts


def _in_use(sessions: Sequence[StoreSession]) -> Iterator[tuple[StoreSession, int, BucketKeys]]:
    """Buckets in which anything is counted, held or booked for a window that still matters."""
    booked = booked_buckets()
    for session in sessions:  # one for each master of a cluster
        found = bucket_keys(session)
        for bucket in session.buckets:
            names = found.get(bucket, BucketKeys())
            if bucket in booked or not names.is_empty:
                yield session, bucket, names


@transaction.atomic
def ask(*, is_repair: bool, actor: Actor, reason: str = "") -> int:
    """Have a worker reconcile now; returns the job's id. The asking is audited."""
    record(
        actor=actor,
        act="ledger.reconcile",
        object_type="ledger",
        object_id="",
        after={"is_repair": is_repair},
        reason=reason[:500],
    )
    return enqueue(
        JOB_KIND,
        args={"is_repair": is_repair, "user_id": actor.user_id, "label": actor.label},
        dedupe_key=f"{JOB_KIND}:{'repair' if is_repair else 'check'}",
    )
