"""App registration."""

from django.apps import AppConfig


class TelemetryConfig(AppConfig):
    """The `telemetry` app."""

    name = "telemetry"
    default_auto_field = "django.db.models.BigAutoField"
