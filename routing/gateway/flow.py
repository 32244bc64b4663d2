"""Whether a try's upstream is read, and how long it was silent while it was.

A caller that reads slowly pauses it, hooks that have enough to look at hold it; either stops the
reading, and neither counts as the upstream's silence.
"""

import asyncio
import time

CALLER_STALL_S = 30.0  # a caller that does not read for so long is gone


class Flow:
    """The state of one try. `last_s` is the monotonic instant of the last output, or of reading on.

    `was_paused` says whether the caller was ever slow: then the times are not the upstream's own.
    """

    __slots__ = ("_is_held", "_paused_s", "_transport", "last_s", "was_paused")

    def __init__(self, now_s: float) -> None:
        self._transport: asyncio.ReadTransport | None = None
        self._paused_s = 0.0  # since when; 0 while the caller keeps up
        self._is_held = False
        self.last_s = now_s
        self.was_paused = False

    @property
    def is_paused(self) -> bool:
        """Whether the caller reads too slowly."""
        return self._paused_s > 0

    def begin(self, transport: asyncio.ReadTransport) -> None:
        """The upstream is on this transport."""
        self._transport = transport
        if self._paused_s:
            transport.pause_reading()

    def end(self) -> None:
        """The try is over: its transport is somebody else's from now on."""
        self._transport = None

    def pause(self) -> None:
        """The caller reads too slowly."""
        self._paused_s = time.monotonic()
        self.was_paused = True
        if self._transport is not None:
            self._transport.pause_reading()

    def resume(self) -> None:
        """The caller has caught up."""
        self._paused_s = 0.0
        self._read_on()

    def hold(self) -> None:
        """Hooks have enough to look at."""
        if not self._is_held and self._transport is not None:
            self._is_held = True
            self._transport.pause_reading()

    def let_go(self) -> None:
        """Hooks have caught up."""
        if self._is_held:
            self._is_held = False
            self._read_on()

    def _read_on(self) -> None:
        """Nobody was waiting for the upstream meanwhile: the silence was not its own."""
        self.last_s = time.monotonic()
        if self._transport is not None and not self._paused_s and not self._is_held:
            self._transport.resume_reading()

    def silent_s(self, now_s: float) -> float:
        """Seconds for which the upstream was read and gave no output."""
        return 0.0 if self._paused_s or self._is_held else now_s - self.last_s

    def is_stalled(self, now_s: float) -> bool:
        """Whether the caller has not read for so long that it is gone."""
        return self._paused_s > 0 and now_s - self._paused_s > CALLER_STALL_S
