"""Does a server that pages need still answer? Asked all the time, so that no page has to find out.

A server that hangs keeps connections open and says nothing: whoever waits for it waits for ever.
Here one thread a server waits; everybody else reads how long it has been waiting. Nobody is watched
until `start`: commands, workers and tests then behave as without this module.
"""

import threading
import time
from collections.abc import Callable

EVERY_S = 0.25
DATABASE_SILENT_AFTER_S = 2.0  # pages then answer within 3 s; a busy server answers this in 0.1 s
STORE_SILENT_AFTER_S = 1.0  # as long as a page waits for it, once
MOST_RETURNING_S = 300.0  # pools then give their connections up and begin anew
GRACE_S = 0.1  # the answer may lie ready while the whole process was paused


class Watch:
    """One server, asked by `ask`, which returns when it has answered and raises one of `faults`."""

    def __init__(
        self,
        name: str,
        ask: Callable[[], None],
        faults: tuple[type[Exception], ...],
        silent_after_s: float,
    ) -> None:
        self.name = name
        self._ask = ask
        self._faults = faults
        self._silent_after_s = silent_after_s
        self._asked_s: float | None = None
        self._answered = threading.Event()
        self._is_silent = False
        self._fault = ""
        self._away_since_s: float | None = None
        self._returned_until_s = 0.0
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def why_away(self) -> str:
        """Why the server is not to be waited for; empty when it answers, or is not watched."""
        asked_s = self._asked_s
        if asked_s is None or time.monotonic() - asked_s <= self._silent_after_s:
            return self._fault
        if self._is_silent or not self._answered.wait(GRACE_S):
            self._is_silent = True
            return f"{self.name} has not answered for more than {self._silent_after_s:g} s"
        return self._fault

    @property
    def is_returning(self) -> bool:
        """Whether it was away so lately that a pool may still wait before it connects again.

        Pools double their wait from 1 s: the next try comes at most as long after the return as
        the server was away, and a second, each a tenth longer by jitter.
        """
        return time.monotonic() < self._returned_until_s

    @property
    def is_watching(self) -> bool:
        """Whether the thread runs."""
        return self._thread is not None

    def start(self) -> None:
        """Begin to ask."""
        if self._thread is None:
            self._stop.clear()
            self._thread = threading.Thread(
                target=self._loop, name=f"{self.name}-watch", daemon=True
            )
            self._thread.start()

    def stop(self) -> None:
        """Ask no more; a question under way is left to itself."""
        self._stop.set()
        self._thread = self._asked_s = None
        self._fault = ""

    def _loop(self) -> None:
        while True:
            self._answered.clear()
            self._asked_s = asked_s = time.monotonic()
            fault = ""
            try:
                self._ask()
            except self._faults as error:
                fault = f"{self.name} is away ({type(error).__name__})"
            if self._stop.is_set():
                return
            self._note(asked_s, has_failed=bool(fault))
            self._fault = fault
            self._asked_s, self._is_silent = None, False
            self._answered.set()
            if self._stop.wait(EVERY_S):
                return

    def _note(self, asked_s: float, *, has_failed: bool) -> None:
        now_s = time.monotonic()
        if self._away_since_s is None and (has_failed or now_s - asked_s > self._silent_after_s):
            self._away_since_s = asked_s
        if not has_failed and self._away_since_s is not None:
            wait_s = 1.1 * (now_s - self._away_since_s + 1)
            self._returned_until_s = now_s + min(wait_s, MOST_RETURNING_S)
            self._away_since_s = None
