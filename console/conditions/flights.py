"""Questions asked side by side, each answered in bounded time, never twice at once.

A server that hangs may hold a question for long. It then holds one thread, however many ask: who
asks again joins the question under way, and is told that there is no answer yet.
"""

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

DEADLINE_S = 1.0
LATE_WAIT_S = 0.05  # for a question that has been open longer than that


class _Flight:
    """One question under way."""

    def __init__(self, job: Callable[[], Any]) -> None:
        self.job = job
        self.began_s = time.monotonic()
        self.done = threading.Event()
        self.answer: Any = None
        self.error: Exception | None = None


class Flights:
    """The questions of one process. Threads are daemons: none holds up the end of a command."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: dict[str, _Flight] = {}

    def ask(
        self, jobs: Mapping[str, Callable[[], Any]], deadline_s: float = DEADLINE_S
    ) -> dict[str, Any]:
        """Answers by name; a name without one gave none in time. A job's exception is raised."""
        flights = {name: self._join(name, job) for name, job in jobs.items()}
        end_s = time.monotonic() + deadline_s
        answers = {}
        for name, flight in flights.items():
            is_late = time.monotonic() - flight.began_s > deadline_s
            wait_s = LATE_WAIT_S if is_late else max(0.0, end_s - time.monotonic())
            if flight.done.wait(wait_s):
                if flight.error is not None:
                    raise flight.error
                answers[name] = flight.answer
        return answers

    def _join(self, name: str, job: Callable[[], Any]) -> _Flight:
        with self._lock:
            flight = self._open.get(name)
            if flight is None:
                flight = self._open[name] = _Flight(job)
                thread = threading.Thread(
                    target=self._fly, args=(name, flight), name=f"ask {name}", daemon=True
                )
                thread.start()
            return flight

    def _fly(self, name: str, flight: _Flight) -> None:
        try:
            flight.answer = flight.job()
        except Exception as error:  # noqa: BLE001 - it is raised where the answer is awaited
            flight.error = error
        finally:
            with self._lock:
                del self._open[name]
            flight.done.set()
