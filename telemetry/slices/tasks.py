"""The background job of slices."""

from console.jobs.registry import JobHandle, handler
from telemetry.slices.services import drop_old, roll_up


@handler("roll_up_slices")
def roll_up_slices(_job: JobHandle) -> None:
    """Every minute: write ended minutes, delete the oldest. Repeating it changes nothing."""
    roll_up()
    drop_old()
