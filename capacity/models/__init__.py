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

__all__ = ["Driver", "FailureDomain", "Model", "Pool", "Region", "Replica", "ReplicaChange"]
