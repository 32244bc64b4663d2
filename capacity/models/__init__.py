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
from capacity.models.forecast import DemandHour, Forecast, ForecastRun, PoolPlan
from capacity.models.limits import CapacityLimit
from capacity.models.playbook import (
    Playbook,
    PlaybookAct,
    PlaybookMode,
    PlaybookRun,
    PlaybookVersion,
    PlaybookWatch,
)
from capacity.models.profile import PoolProfile, ProfileVersion
from capacity.models.provider import ProviderKey
from capacity.models.report import Cadence, Report, ReportFile, ReportSchedule, ReportState
from capacity.models.rollout import (
    ACTIVE,
    OnTooFew,
    Rollout,
    RolloutLane,
    RolloutState,
    RolloutStep,
)

__all__ = [
    "ACTIVE",
    "Artifact",
    "Cadence",
    "CapacityLimit",
    "DemandHour",
    "Driver",
    "FailureDomain",
    "Forecast",
    "ForecastRun",
    "GpuType",
    "Model",
    "Node",
    "NodeState",
    "OnTooFew",
    "Playbook",
    "PlaybookAct",
    "PlaybookMode",
    "PlaybookRun",
    "PlaybookVersion",
    "PlaybookWatch",
    "Pool",
    "PoolPlan",
    "PoolProfile",
    "PoolRevision",
    "ProfileVersion",
    "ProviderKey",
    "Region",
    "Replica",
    "ReplicaChange",
    "Report",
    "ReportFile",
    "ReportSchedule",
    "ReportState",
    "Rollout",
    "RolloutLane",
    "RolloutState",
    "RolloutStep",
]
