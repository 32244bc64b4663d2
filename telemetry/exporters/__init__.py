"""Adapters to other systems' telemetry."""
