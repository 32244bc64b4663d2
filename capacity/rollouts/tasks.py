"""The job that moves rollouts on. The beat schedule enqueues it every five seconds."""

from capacity.rollouts.services import advance_rollouts
from console.jobs.registry import JobHandle, handler


@handler("advance_rollouts")
def run_advance_rollouts(job: JobHandle) -> None:
    """One bounded pass; each step is a row, so a new worker goes on from the last one."""

    def noted(rollout_id: int, ratio: float) -> None:
        job.checkpoint({"rollout": rollout_id}, ratio)

    advance_rollouts(is_cancelled=job.is_cancelled, after_each=noted)
