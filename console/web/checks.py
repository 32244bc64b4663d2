"""System checks: what a wrong setting would silently undo."""

from collections.abc import Sequence
from typing import Any

from django.apps import AppConfig
from django.conf import settings
from django.core.checks import CheckMessage, Error, register

HEADERS = "console.web.csp.SecurityHeaders"
REQUEST_ID = "console.web.csp.RequestId"


@register("headrace")
def middleware_order(app_configs: Sequence[AppConfig] | None, **kwargs: Any) -> list[CheckMessage]:
    """Every response, static files and refusals too, passes the request id and header layers."""
    if list(settings.MIDDLEWARE[:2]) == [REQUEST_ID, HEADERS]:
        return []
    return [
        Error(
            "The request id and the security headers must be the first two middlewares.",
            hint=f"Start MIDDLEWARE with {REQUEST_ID} and {HEADERS}.",
            id="headrace.E001",
        )
    ]
