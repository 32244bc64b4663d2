"""The background job of objectives."""

from console.jobs.registry import JobHandle, handler
from telemetry.slos.services import drop_old, judge_minutes


@handler("judge_objectives")
def judge_objectives(_job: JobHandle) -> None:
    """Every half minute: judge ended minutes, delete the oldest. Repeating it changes nothing."""
    judge_minutes()
    drop_old()
