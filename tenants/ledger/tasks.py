"""Background work of the ledger."""

import logging

from console.jobs.registry import JobHandle, handler
from tenants.ledger.services import drop_old

logger = logging.getLogger(__name__)


@handler("drop_old_partitions")
def drop_old_partitions(job: JobHandle) -> None:
    """Drop shapes, ended windows, minute rollups and damaged entries past their time."""
    logger.info("dropped: %s", drop_old())
