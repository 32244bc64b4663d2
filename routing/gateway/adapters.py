"""Which adapters each replica has loaded: its own model list, asked every few seconds.

Only pools that a policy names adapters of are asked. What a replica last said stands until it says
otherwise or answers 404 for the name: a list that cannot be had strands nobody.
"""

import asyncio
import logging

import msgspec

from routing.gateway.asking import ask
from routing.gateway.fleet import Endpoint, Fleet

log = logging.getLogger(__name__)

LIST_EVERY_S = 5.0  # a loaded adapter is served, an unloaded one dropped, within twice this
LIST_S = 3.0  # a healthy engine lists its models in milliseconds
MAX_LISTINGS = 16  # at once
_PATH = b"/v1/models"


class _Model(msgspec.Struct):
    id: str


class _Models(msgspec.Struct):
    data: list[_Model]


_decode = msgspec.json.Decoder(_Models).decode


class AdapterWatch:
    """Asks for model lists; `turn` is called each second."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._running: set[asyncio.Task[None]] = set()
        self._asked_s: dict[str, float] = {}

    def turn(self, now_s: float) -> None:
        """Ask those whose list is old."""
        pools = self._fleet.adapter_pools
        if not pools:
            self._asked_s.clear()
            return
        for name in self._asked_s.keys() - self._fleet.endpoints.keys():
            del self._asked_s[name]
        for name, endpoint in self._fleet.endpoints.items():
            if len(self._running) >= MAX_LISTINGS:
                return
            asked_s = self._asked_s.get(name)
            is_due = asked_s is None or now_s - asked_s >= LIST_EVERY_S
            if endpoint.pool.id in pools and (is_due or endpoint.candidate.adapters is None):
                self._asked_s[name] = now_s
                task = asyncio.get_running_loop().create_task(_list(endpoint))
                self._running.add(task)
                task.add_done_callback(self._running.discard)

    def stop(self) -> None:
        """Give up on running questions."""
        for task in self._running:
            task.cancel()


async def _list(endpoint: Endpoint) -> None:
    try:
        async with asyncio.timeout(LIST_S):
            body = await ask(endpoint, b"GET", _PATH)
        found = frozenset(model.id for model in _decode(body or b"").data)
    except (OSError, TimeoutError, msgspec.MsgspecError):
        return  # what it last said stands
    if found != endpoint.candidate.adapters:
        log.info("%s lists %d models", endpoint.candidate.id, len(found))
    endpoint.candidate.adapters = found
