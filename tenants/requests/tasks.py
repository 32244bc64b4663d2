"""Background work of quota requests."""

import logging

from console.jobs.registry import JobHandle, handler
from tenants.requests.services import end_due_grants

logger = logging.getLogger(__name__)


@handler("end_quota_grants")
def end_quota_grants(job: JobHandle) -> None:
    """Return limits whose grant has ended to where they were."""
    if ended := end_due_grants():
        logger.info("%d quota grants ended", ended)
