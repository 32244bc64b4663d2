"""The telemetry app's models."""

from telemetry.models.rollup import SliceMinute

__all__ = ["SliceMinute"]
