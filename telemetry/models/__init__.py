"""The telemetry app's models."""

from telemetry.models.energy import GridInput, PowerInput
from telemetry.models.pool import PoolSample
from telemetry.models.rollup import SliceMinute
from telemetry.models.slo import Objective, ObjectiveMinute

__all__ = ["GridInput", "Objective", "ObjectiveMinute", "PoolSample", "PowerInput", "SliceMinute"]
