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


class CapacityLimit(msgspec.Struct, frozen=True):
    """At most `amount` of `dimension`: per minute of the store's clock, gauges at once."""

    dimension: Dimension
    amount: int

    @property
    def window(self) -> WindowKind:
        """Over what it counts."""
        return WindowKind.NOW if self.dimension in GAUGES else WindowKind.MINUTE
