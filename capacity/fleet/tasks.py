"""Job kinds of the fleet. The beat schedule enqueues `reconcile_pools` every five seconds."""

from capacity.fleet.services import reconcile_pools
from console.jobs.registry import JobHandle, handler


@handler("reconcile_pools")
def run_reconcile_pools(job: JobHandle) -> None:
    """One bounded pass; what it does not reach, the next beat does."""
    reconcile_pools(is_cancelled=job.is_cancelled)
