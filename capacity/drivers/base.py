"""What reconciling asks of whoever starts a pool's replicas.

A driver holds no state: everything it needs to find a replica again is in the handle that `start`
returns (kept in the replica's row) and, for processes, in a file beside it. So any worker can go on
where a killed one stopped.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

Handle = dict[str, Any]


class DriverError(Exception):
    """The driver could not do what was asked; the message says what to change."""


class Observed(StrEnum):
    """What a driver finds where a replica should be.

    `wrong` answers as another model than the pool's, or shows another host's certificate: an
    address that somebody else uses now.
    """

    GONE = "gone"
    STARTING = "starting"
    SERVING = "serving"
    WRONG = "wrong"


@dataclass(frozen=True, slots=True)
class PoolSpec:
    """A pool as drivers see it. `settings` is the pool row's `spec`, checked by the driver."""

    pool: str
    model: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    block_size_tokens: int = 16

    def replica_name(self, ordinal: int) -> str:
        """Name of one replica, the same for ever."""
        return f"{self.pool}-{ordinal}"


@dataclass(frozen=True, slots=True)
class ReplicaStatus:
    """One look at a replica.

    `in_flight` is how many calls it works on, None when it does not say.
    """

    observed: Observed
    host: str = ""
    port: int = 0
    cause: str = ""
    in_flight: int | None = None


@dataclass(frozen=True, slots=True)
class Identity:
    """What an engine says of itself: the names that it serves, what it loaded, its version.

    `expected_root` is what it was told to load, empty where that cannot be known.
    """

    serves: tuple[str, ...]
    root: str
    version: str
    expected_root: str = ""


class PoolDriver(Protocol):
    """Every call is bounded in time and may be repeated."""

    def check(self, spec: PoolSpec) -> None:
        """Raise `DriverError` when the settings cannot work."""

    def start(self, spec: PoolSpec, ordinal: int) -> Handle:
        """Start a replica, or find the one that a killed worker started. Raises `DriverError`."""

    def status(self, spec: PoolSpec, handle: Handle, *, wait_s: float = 1.0) -> ReplicaStatus:
        """Look at a replica; waits at most `wait_s` for one that is just starting."""

    def identify(self, spec: PoolSpec, handle: Handle) -> Identity | None:
        """What serves there; None if it does not answer."""

    def probe(self, spec: PoolSpec, handle: Handle) -> bool:
        """Whether it completes one token: what readiness means."""

    def stop(self, handle: Handle, drain_s: float) -> None:
        """End it: live calls get `drain_s`, then it is killed. A gone one is no error."""
