"""The job that brings what changed to the gateways."""

from console.jobs.registry import JobHandle, handler
from routing.policies.services import push_snapshot


@handler("push_snapshot")
def push(job: JobHandle) -> None:
    """Compile and offer the snapshot; a repeated run changes nothing."""
    if not job.is_cancelled():
        push_snapshot()
