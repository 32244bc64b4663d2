"""REST of policies: reading, drafts, publishing."""

from routing.policies.api.drafts import Draft, DraftPublish
from routing.policies.api.publishing import Apply, Check, PlanIt, Publish, Rollback
from routing.policies.api.reading import (
    Difference,
    Export,
    Policies,
    Policy,
    SnapshotAcks,
    Version,
    Versions,
)

__all__ = [
    "Apply",
    "Check",
    "Difference",
    "Draft",
    "DraftPublish",
    "Export",
    "PlanIt",
    "Policies",
    "Policy",
    "Publish",
    "Rollback",
    "SnapshotAcks",
    "Version",
    "Versions",
]
