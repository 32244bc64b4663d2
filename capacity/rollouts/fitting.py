"""Which acts fit a rollout as it stands, for its page and for the page of an act."""

from dataclasses import dataclass

from capacity.models import RolloutState
from capacity.rollouts.selectors import RolloutDetail


@dataclass(frozen=True, slots=True)
class Act:
    """A button of the page; `why_not` is what it needs when it may not be pressed."""

    name: str
    label: str
    is_danger: bool = False
    why_not: str = ""


def acts_of(found: RolloutDetail, *, may_run: bool) -> list[Act]:
    """The buttons that fit the state, with the reason where one may not be pressed."""
    needs = "" if may_run else "Needs the permission rollout_run"
    taken = f"Rollout {found.other_id} has the pool" if found.other_id else ""
    superseded = "" if found.is_way_back_known else "The pool has been rolled out since"
    state = found.row.state
    if state == RolloutState.RUNNING:
        names = ["pause", "abort", "roll-back"]
    elif state == RolloutState.PAUSED:
        names = ["resume", "abort", "roll-back"]
    elif state == RolloutState.ROLLING_BACK:
        names = ["pause", "abort"]
    elif state == RolloutState.FAILED:
        names = ["resume"]
    elif state == RolloutState.CANCELLED:
        names = ["roll-back"]
    else:
        names = []
    is_over = state in (RolloutState.FAILED, RolloutState.CANCELLED)
    why_not = needs or (is_over and (taken or superseded)) or ""
    return [
        Act(name, name.replace("-", " ").capitalize(), name in ("abort", "roll-back"), why_not)
        for name in names
    ]
