"""The routing app's models."""

from routing.models.policy import Policy, PolicyDraft, PolicyPlan, PolicyVersion, SnapshotRow

__all__ = ["Policy", "PolicyDraft", "PolicyPlan", "PolicyVersion", "SnapshotRow"]
