"""The only place that mounts live consumers, behind one rule about who may open a socket.

A browser sends a person's cookies with any site's handshake, and no token protects it. So the
`Origin` must be this very console: scheme, host and port. A handshake without one is refused.
"""

from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import urlsplit

from channels.routing import URLRouter
from django.conf import settings
from django.http.request import split_domain_port, validate_host
from django.urls import path

from telemetry.live.hub import Hub
from telemetry.live.live import AccessBook, LiveConsumer

Scope = dict[str, Any]
App = Callable[[Scope, Any, Any], Awaitable[None]]
_DEFAULT_PORTS = {"http": 80, "https": 443}


def websocket_application(hub: Hub) -> App:
    """All sockets of the console."""
    consumer = LiveConsumer.as_asgi(hub=hub, book=AccessBook())
    return same_origin(URLRouter([path("ws/live/", consumer)]))


def same_origin(app: App) -> App:
    """Refuse handshakes (403) that do not come from a page of this console."""

    async def guarded(scope: Scope, receive: Any, send: Any) -> None:
        if is_own_page(scope):
            try:
                await app(scope, receive, send)
            except ValueError:  # no such route: the router has no other way to say so
                await send({"type": "websocket.close"})
        else:
            await send({"type": "websocket.close"})

    return guarded


def is_own_page(scope: Scope) -> bool:
    """Whether the handshake's one `Origin` equals the address that it was sent to."""
    origins = [value for name, value in scope["headers"] if name == b"origin"]
    hosts = [value for name, value in scope["headers"] if name == b"host"]
    if len(origins) != 1 or len(hosts) != 1:
        return False
    origin = origins[0].decode("latin-1")
    if origin in settings.CSRF_TRUSTED_ORIGINS:
        return True
    host = hosts[0].decode("latin-1")
    domain, _ = split_domain_port(host)
    if not domain or not validate_host(domain, settings.ALLOWED_HOSTS):
        return False
    scheme = "https" if settings.IS_HTTPS or scope.get("scheme") == "wss" else "http"
    own = _address(f"{scheme}://{host}")
    return own is not None and own == _address(origin)


def _address(origin: str) -> tuple[str, str, int] | None:
    try:
        parts = urlsplit(origin)
        port = parts.port or _DEFAULT_PORTS.get(parts.scheme)
    except ValueError:
        return None
    if not parts.hostname or port is None or parts.path or parts.query or parts.username:
        return None
    return parts.scheme, parts.hostname, port
