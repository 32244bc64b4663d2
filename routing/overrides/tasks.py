"""The job that brings the present set of overrides to the gateways."""

from console.jobs.registry import JobHandle, handler
from routing.overrides.services import PUSH_OVERRIDES, push_overrides


@handler(PUSH_OVERRIDES)
def push(job: JobHandle) -> None:
    """Offer the set; a repeated run changes nothing."""
    if not job.is_cancelled():
        push_overrides()
