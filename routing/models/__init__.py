"""The routing app's models."""

from routing.models.policy import Policy, PolicyVersion, SnapshotRow

__all__ = ["Policy", "PolicyVersion", "SnapshotRow"]
