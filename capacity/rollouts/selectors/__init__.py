"""Rollouts as pages and REST need them: frozen values, a fixed number of queries."""

from capacity.rollouts.selectors.lists import (
    OffCourse,
    RolloutRow,
    off_course,
    rollouts_between,
    rollouts_page,
)
from capacity.rollouts.selectors.starting import PoolToRoll, pool_to_roll
from capacity.rollouts.selectors.timeline import LaneRow, RolloutDetail, rollout_detail

__all__ = [
    "LaneRow",
    "OffCourse",
    "PoolToRoll",
    "RolloutDetail",
    "RolloutRow",
    "off_course",
    "pool_to_roll",
    "rollout_detail",
    "rollouts_between",
    "rollouts_page",
]
