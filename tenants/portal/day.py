"""The tenant's own day."""

from datetime import UTC, datetime
from zoneinfo import ZoneInfo


def start_of_day(now: datetime, timezone: str) -> datetime:
    """UTC instant at which the present day began in that zone."""
    local = now.astimezone(ZoneInfo(timezone))
    return local.replace(hour=0, minute=0, second=0, microsecond=0, fold=0).astimezone(UTC)
