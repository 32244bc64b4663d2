"""The capacity app's models."""

from capacity.models.fleet import (
    Driver,
    FailureDomain,
    Model,
    Pool,
    Region,
    Replica,
    ReplicaChange,
)
from capacity.models.limits import CapacityLimit

__all__ = [
    "CapacityLimit",
    "Driver",
    "FailureDomain",
    "Model",
    "Pool",
    "Region",
    "Replica",
    "ReplicaChange",
]
