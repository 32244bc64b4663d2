"""Which limits exist, and what is left of one."""

from routing.contracts.enums import Dimension, LimitScope, WindowKind

# Exact below 2^53 in the store's counters.
MAX_AMOUNT = 9_000_000_000_000_000
GAUGES = frozenset({Dimension.CONCURRENCY, Dimension.KV_TOKENS})
SCOPE_SUBJECT = {
    LimitScope.TENANT: "",
    LimitScope.KEY: "key_id",
    LimitScope.TENANT_MODEL: "model",
    LimitScope.TENANT_CLASS: "work_class",
}
# A tenant's own admin may tighten what its keys use; the rest is granted by operators.
OWN_SCOPES = frozenset({LimitScope.KEY})


def window_fits(dimension: Dimension, window: WindowKind) -> bool:
    """Whether a dimension is counted over that window: gauges over `NOW`, the rest over time."""
    return (dimension in GAUGES) == (window is WindowKind.NOW)


def remaining(amount: int, used: int, held: int) -> int:
    """What may still be taken: never below 0, also after a limit was lowered under its use."""
    return max(amount - used - held, 0)
