"""Reconciliation by the clock, and when somebody asks."""

import logging

from console.audit.rules import SYSTEM, Actor
from console.jobs.registry import JobHandle, handler
from tenants.reconcile.services import ASKED_HOURS, JOB_KIND, SCHEDULED_HOURS, reconcile

logger = logging.getLogger(__name__)


@handler(JOB_KIND)
def reconcile_ledger(job: JobHandle) -> None:
    """Check; repair only if a person asked for it."""
    label, user_id = job.args.get("label"), job.args.get("user_id")
    actor = Actor(int(str(user_id)) if user_id else None, str(label)) if label else SYSTEM
    run = reconcile(
        is_repair=job.args.get("is_repair") is True,
        hours=ASKED_HOURS if label else SCHEDULED_HOURS,
        actor=actor,
    )
    logger.info("reconciled: %s differ, %s acts", run.count, len(run.acts))
