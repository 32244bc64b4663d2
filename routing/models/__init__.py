"""The routing app's models."""

from routing.models.evaluation import Evaluation
from routing.models.hook import Hook
from routing.models.override import Override
from routing.models.policy import Policy, PolicyDraft, PolicyPlan, PolicyVersion, SnapshotRow

__all__ = [
    "Evaluation",
    "Hook",
    "Override",
    "Policy",
    "PolicyDraft",
    "PolicyPlan",
    "PolicyVersion",
    "SnapshotRow",
]
