"""The job that calibrates pools: every ten minutes, one at a time."""

from capacity.profiles.services import calibrate_pools
from console.jobs.registry import JobHandle, handler


@handler("calibrate_pools")
def run_calibrate_pools(job: JobHandle) -> None:
    """One pass over every pool; what did nothing since the last is left alone."""
    calibrate_pools(is_cancelled=job.is_cancelled)
