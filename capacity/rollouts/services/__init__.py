"""Writes of rollouts: what people ask for, and the machine that moves them on."""

from capacity.rollouts.services.acts import abort, pause, resume, roll_back, start
from capacity.rollouts.services.machine import advance_rollouts

__all__ = ["abort", "advance_rollouts", "pause", "resume", "roll_back", "start"]
