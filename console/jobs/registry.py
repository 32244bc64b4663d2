"""Job kind -> handler. Slices register theirs in their `tasks.py`; services only know the kind."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol


class JobHandle(Protocol):
    """What a handler is given: its arguments, its checkpoint, and whether to go on."""

    @property
    def args(self) -> dict[str, object]:
        """Ids and numbers that were enqueued with the job."""

    @property
    def cursor(self) -> dict[str, object]:
        """The last checkpoint; empty on the first run."""

    def checkpoint(self, cursor: dict[str, object], progress_ratio: float | None = None) -> None:
        """Store how far the work is, so that a new worker goes on from there.

        Raises `JobLost` when the job was cancelled or given to another worker: stop at once.
        """

    def is_cancelled(self) -> bool:
        """Whether the handler is to stop: cancelled, or no longer ours."""


Handler = Callable[[JobHandle], None]


class JobLost(Exception):  # noqa: N818 - says what happened; nothing is wrong
    """The job was cancelled or taken over while its handler ran."""


@dataclass(slots=True)
class _Registry:
    handlers: dict[str, Handler] = field(default_factory=dict)


_registry = _Registry()


def handler(kind: str) -> Callable[[Handler], Handler]:
    """Register the decorated function for a kind. Raises `ValueError` when the kind is taken."""

    def register(function: Handler) -> Handler:
        present = _registry.handlers.get(kind)
        if present is not None and present.__qualname__ != function.__qualname__:
            raise ValueError(f"job kind {kind} already has a handler")
        _registry.handlers[kind] = function
        return function

    return register


def handler_of(kind: str) -> Handler | None:
    """The handler of a kind, if its slice's tasks are loaded."""
    return _registry.handlers.get(kind)


def kinds() -> tuple[str, ...]:
    """Every registered kind, sorted."""
    return tuple(sorted(_registry.handlers))
