"""Limits of what a pool or the whole fleet takes, over all tenants."""

from enum import StrEnum

import msgspec

from routing.contracts.enums import Dimension, WindowKind

LIMITED = (
    Dimension.REQUESTS,
    Dimension.INPUT_TOKENS,
    Dimension.OUTPUT_TOKENS,
    Dimension.CONCURRENCY,
    Dimension.KV_TOKENS,
)
GAUGES = frozenset({Dimension.CONCURRENCY, Dimension.KV_TOKENS})


class CapacityScope(StrEnum):
    """What the limit protects."""

    POOL = "pool"
    FLEET = "fleet"


class SharedScope(StrEnum):
    """Whose share refused: the pool or the fleet has room, but it is kept for other classes."""

    POOL_CLASS = "pool_class"
    FLEET_CLASS = "fleet_class"


class CapacityLimit(msgspec.Struct, frozen=True):
    """At most `amount` of `dimension`: per minute of the store's clock, gauges at once."""

    dimension: Dimension
    amount: int

    @property
    def window(self) -> WindowKind:
        """A minute for rates, the present for what runs at once."""
        return WindowKind.NOW if self.dimension in GAUGES else WindowKind.MINUTE
