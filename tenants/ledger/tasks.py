"""Background work of the ledger."""

import logging

from console.jobs.registry import JobHandle, handler
from tenants.ledger.retention import drop_old, make_partitions

logger = logging.getLogger(__name__)


@handler("drop_old_partitions")
def drop_old_partitions(job: JobHandle) -> None:
    """Make partitions of days to come; drop what is past its time."""
    make_partitions()
    logger.info("dropped: %s", drop_old())
