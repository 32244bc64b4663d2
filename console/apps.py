"""App registration."""

import importlib

from django.apps import AppConfig


class ConsoleConfig(AppConfig):
    """The `console` app."""

    name = "console"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Register the system checks: importing them does."""
        importlib.import_module("console.web.checks")
