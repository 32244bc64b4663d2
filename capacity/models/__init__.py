"""The capacity app's models."""

from capacity.models.fleet import (
    Artifact,
    Driver,
    FailureDomain,
    GpuType,
    Model,
    Node,
    NodeState,
    Pool,
    PoolRevision,
    Region,
    Replica,
    ReplicaChange,
)
from capacity.models.limits import CapacityLimit
from capacity.models.playbook import (
    Playbook,
    PlaybookAct,
    PlaybookMode,
    PlaybookRun,
    PlaybookVersion,
    PlaybookWatch,
)
from capacity.models.rollout import ACTIVE, Rollout, RolloutLane, RolloutState, RolloutStep

__all__ = [
    "ACTIVE",
    "Artifact",
    "CapacityLimit",
    "Driver",
    "FailureDomain",
    "GpuType",
    "Model",
    "Node",
    "NodeState",
    "Playbook",
    "PlaybookAct",
    "PlaybookMode",
    "PlaybookRun",
    "PlaybookVersion",
    "PlaybookWatch",
    "Pool",
    "PoolRevision",
    "Region",
    "Replica",
    "ReplicaChange",
    "Rollout",
    "RolloutLane",
    "RolloutState",
    "RolloutStep",
]
