"""The routing app's models."""

from routing.models.override import Override
from routing.models.policy import Policy, PolicyDraft, PolicyPlan, PolicyVersion, SnapshotRow

__all__ = ["Override", "Policy", "PolicyDraft", "PolicyPlan", "PolicyVersion", "SnapshotRow"]
