"""Writes of policies: drafts, publishing, rolling back, and the snapshot for the gateways."""

from routing.policies.services.checks import PolicyRefused, StaleBase, check_document
from routing.policies.services.drafts import (
    DraftChanged,
    discard_draft,
    publish_draft,
    save_draft,
)
from routing.policies.services.publish import (
    MAX_PLANS,
    PLAN_KEPT,
    Plan,
    apply_plan,
    plan,
    publish,
    roll_back,
)
from routing.policies.services.snapshot import push_snapshot

__all__ = [
    "MAX_PLANS",
    "PLAN_KEPT",
    "DraftChanged",
    "Plan",
    "PolicyRefused",
    "StaleBase",
    "apply_plan",
    "check_document",
    "discard_draft",
    "plan",
    "publish",
    "publish_draft",
    "push_snapshot",
    "roll_back",
    "save_draft",
]
