"""The routing app's models."""

from routing.models.override import Override
from routing.models.policy import Policy, PolicyPlan, PolicyVersion, SnapshotRow

__all__ = ["Override", "Policy", "PolicyPlan", "PolicyVersion", "SnapshotRow"]
