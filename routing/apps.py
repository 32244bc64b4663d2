"""App registration."""

from django.apps import AppConfig


class RoutingConfig(AppConfig):
    """The `routing` app."""

    name = "routing"
    default_auto_field = "django.db.models.BigAutoField"
