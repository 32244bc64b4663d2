"""HTTP and websocket application, with what must run beside them in the same process."""

import asyncio
import os
from typing import Any

from channels.routing import ProtocolTypeRouter
from django.conf import settings
from django.core.asgi import get_asgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "console.project.settings")
http_application = get_asgi_application()  # sets Django up: what follows imports models

from console.outage.postgresql.watched import database_watch  # noqa: E402
from console.project.heartbeat import Heartbeat  # noqa: E402
from console.project.sockets import websocket_application  # noqa: E402
from console.web.store import store_watch  # noqa: E402
from telemetry.live.hub import Hub  # noqa: E402


class Lifespan:
    """Starts live hub, heartbeat and the watches of both servers, and ends them with the server."""

    def __init__(self, hub: Hub, heartbeat: Heartbeat) -> None:
        self.hub = hub
        self.heartbeat = heartbeat

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        """Serve the server's start and stop events."""
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                self.hub.start()
                self.heartbeat.start()
                database_watch.start()
                store_watch.start()
                await send({"type": "lifespan.startup.complete"})
            else:
                database_watch.stop()
                store_watch.stop()
                await self.hub.stop()
                await asyncio.to_thread(self.heartbeat.stop)
                await send({"type": "lifespan.shutdown.complete"})
                return


_hub = Hub(settings.REDIS_URL)
application = ProtocolTypeRouter(
    {
        "http": http_application,
        "websocket": websocket_application(_hub),
        "lifespan": Lifespan(_hub, Heartbeat("console", settings.REDIS_URL)),
    }
)
