"""App registration."""

from django.apps import AppConfig


class CapacityConfig(AppConfig):
    """The `capacity` app."""

    name = "capacity"
    default_auto_field = "django.db.models.BigAutoField"
