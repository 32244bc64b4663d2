"""Which limits exist, and what is left of one."""

from typing import NamedTuple

from routing.contracts.enums import Dimension, LimitScope, WindowKind

# Exact below 2^53 in the store's counters.
MAX_AMOUNT = 9_000_000_000_000_000
GAUGES = frozenset({Dimension.CONCURRENCY, Dimension.KV_TOKENS})
SCOPE_SUBJECT = {
    LimitScope.TENANT: "",
    LimitScope.KEY: "key_id",
    LimitScope.TENANT_MODEL: "model",
    LimitScope.TENANT_CLASS: "work_class",
    LimitScope.RESOURCE: "resource",
}
# A tenant's own admin may tighten what its keys use; the rest is granted by operators.
OWN_SCOPES = frozenset({LimitScope.KEY})
# A use of a resource has no tokens.
RESOURCE_DIMENSIONS = frozenset(
    {Dimension.REQUESTS, Dimension.CONCURRENCY, Dimension.SPEND_NANOUSD}
)


def window_fits(dimension: Dimension, window: WindowKind) -> bool:
    """Whether a dimension is counted over that window: gauges over `NOW`, the rest over time."""
    return (dimension in GAUGES) == (window is WindowKind.NOW)


# Windows that may begin later than the calendar's, and how many days each can begin on.
ANCHOR_DAYS = {WindowKind.DAY: 1, WindowKind.WEEK: 7, WindowKind.MONTH: 31}
DAY_MIN = 1_440
MIDNIGHT = "00:00"


class Anchor(NamedTuple):
    """Where a window begins, in the tenant's zone: its day (of the month, or 1 Monday), `HH:MM`."""

    day: int
    time: str

    @property
    def minutes(self) -> int:
        """`anchor_min` of a limit. Raises `ValueError` unless the time is `HH:MM`."""
        hours, colon, minutes = self.time.partition(":")
        digits = hours + minutes
        if not (len(self.time) == 5 and colon and digits.isascii() and digits.isdigit()):
            raise ValueError(self.time)
        if int(hours) > 23 or int(minutes) > 59:
            raise ValueError(self.time)
        return (self.day - 1) * DAY_MIN + int(hours) * 60 + int(minutes)


def anchor_of(anchor_min: int) -> Anchor | None:
    """The anchor of a limit; None for the calendar's own window."""
    if not anchor_min:
        return None
    days, minutes = divmod(anchor_min, DAY_MIN)
    return Anchor(days + 1, f"{minutes // 60:02}:{minutes % 60:02}")


def remaining(amount: int, used: int, held: int) -> int:
    """What may still be taken: never below 0, also after a limit was lowered under its use."""
    return max(amount - used - held, 0)
