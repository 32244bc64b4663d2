"""The hourly forecast, checkpointed after each series."""

import logging
import time

from capacity.forecasts.fitted import elsewhere
from capacity.forecasts.services import JOB_KIND, begin_run, finish_run, forecast_next
from console.jobs.registry import JobHandle, handler

logger = logging.getLogger(__name__)

FIT_S = 240.0  # of a run: series behind it get the floors, largest ones come first


@handler(JOB_KIND)
def forecast_demand(job: JobHandle) -> None:
    """Go on with the run that the job began, or begin one."""
    run_id = job.cursor.get("run_id")
    if not isinstance(run_id, int):
        run_id = begin_run()
        job.checkpoint({"run_id": run_id}, 0.0)
    end_s = time.monotonic() + FIT_S
    may_fit = lambda: time.monotonic() < end_s  # noqa: E731
    with elsewhere() as models:
        while (done := forecast_next(run_id, may_fit, models)) is not None:
            job.checkpoint({"run_id": run_id}, done)
    finish_run(run_id)
    logger.info("forecast run %d done", run_id)
