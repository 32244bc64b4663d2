"""Security headers of every console response, and the request id that every error names.

The policy is the same on all pages: no inline script or style, nothing from another host.
"""

import contextvars
import re
import secrets
from collections.abc import Callable

from django.http import HttpRequest, HttpResponseBase

GetResponse = Callable[[HttpRequest], HttpResponseBase]

CONTENT_SECURITY_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data:",
        "font-src 'self'",
        "connect-src 'self'",
        "form-action 'self'",
        "base-uri 'none'",
        "frame-ancestors 'none'",
    )
)
PERMISSIONS_POLICY = "camera=(), geolocation=(), microphone=(), payment=(), usb=()"
REQUEST_ID_HEADER = "X-Request-ID"
_GIVEN_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")  # the audit column holds 64 characters
_current: contextvars.ContextVar[str] = contextvars.ContextVar("request_id", default="")


def request_id() -> str:
    """Id of the request being answered; empty outside one."""
    return _current.get()


class RequestId:
    """Gives each request an id, or keeps a plain one that a proxy sent, and echoes it."""

    def __init__(self, get_response: GetResponse) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        """Answer with the id in `request.request_id`, in the header and in `request_id()`."""
        given = request.headers.get(REQUEST_ID_HEADER, "")
        value = given if _GIVEN_ID.fullmatch(given) else secrets.token_hex(8)
        request.request_id = value  # type: ignore[attr-defined]
        token = _current.set(value)
        try:
            response = self.get_response(request)
        finally:
            _current.reset(token)
        response.headers[REQUEST_ID_HEADER] = value
        return response


class SecurityHeaders:
    """Sets the headers above; a view cannot weaken them."""

    def __init__(self, get_response: GetResponse) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        """Answer with the policy on the response."""
        response = self.get_response(request)
        response.headers["Content-Security-Policy"] = CONTENT_SECURITY_POLICY
        response.headers["Permissions-Policy"] = PERMISSIONS_POLICY
        return response
