"""The background job of pool samples."""

from console.jobs.registry import JobHandle, handler
from telemetry.pools.services import drop_old_samples, sample_pools


@handler("sample_pools")
def run_sample_pools(_job: JobHandle) -> None:
    """Every minute: look at every pool once."""
    sample_pools()
    drop_old_samples()
