"""Hearing what is published: a connection that subscribes and takes no commands."""

from collections.abc import Callable

from routing.store.client import StoreConnection
from routing.store.clock import StoreClock


class NudgeListener(StoreConnection):
    """A connection of its own that hears published messages; it takes no commands.

    `heard(channel, payload)` runs in the loop. Messages published while disconnected are lost:
    a nudge only shortens the wait for a poll.
    """

    def __init__(
        self,
        url: str,
        *,
        name: str,
        clock: StoreClock,
        channel: str,
        heard: Callable[[bytes, bytes], None],
    ) -> None:
        """Subscribe to `channel` after each connect."""
        super().__init__(url, name=name, clock=clock)
        self._heard = heard
        self.on_connect.append(lambda _: self.command("SUBSCRIBE", channel))

    def hear(self, reply: object) -> bool:
        """Hand a published message on."""
        if not isinstance(reply, list) or len(reply) != 3 or reply[0] != b"message":
            return False
        self._heard(reply[1], reply[2])
        return True
