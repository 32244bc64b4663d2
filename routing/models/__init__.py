"""The routing app's models."""

from routing.models.policy import Policy, PolicyPlan, PolicyVersion, SnapshotRow

__all__ = ["Policy", "PolicyPlan", "PolicyVersion", "SnapshotRow"]
