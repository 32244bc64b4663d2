"""App registration."""

from django.apps import AppConfig


class ConsoleConfig(AppConfig):
    """The `console` app."""

    name = "console"
    default_auto_field = "django.db.models.BigAutoField"
