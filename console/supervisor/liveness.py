"""Does a process still answer at all? True, False, or None when that cannot be told now.

Asked of ready processes every few seconds, inside the supervisor's loop, so nothing here waits
longer than a second. An answer of any kind counts: whether it can serve is the probes' question.
"""

import http.client
import socket
import struct
import time
from dataclasses import dataclass, field

import redis

from console.supervisor import ports
from console.supervisor.probes import (
    HEARTBEAT_FRESH_S,
    PROBE_TIMEOUT_S,
    decode_heartbeat,
    store_client,
)
from routing.store import keys

_SSL_REQUEST = struct.pack("!ii", 8, 80877103)  # answered by `S` or `N` before any login
_WRITE_PROBE_MS = 10_000
_READ_AGAIN_AFTER_S = 2.0  # one look at the store serves all who ask in the same round


@dataclass(frozen=True, slots=True)
class HttpAnswers:
    """Any answer to `GET /healthz`, which looks at no other part."""

    host: str
    port: int

    def __call__(self, pid: int) -> bool | None:
        """Whether it answers, and not somebody else on its port."""
        if ports.listens(pid, self.port) is False:
            return False
        connection = http.client.HTTPConnection(self.host, self.port, timeout=PROBE_TIMEOUT_S)
        try:
            connection.request("GET", "/healthz")
            connection.getresponse()
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()
        return True


@dataclass(frozen=True, slots=True)
class PostgresAnswers:
    """It answers the first question of its protocol: so it accepts and forks."""

    host: str
    port: int

    def __call__(self, pid: int) -> bool | None:
        """Whether it answers."""
        try:
            with socket.create_connection((self.host, self.port), PROBE_TIMEOUT_S) as link:
                link.sendall(_SSL_REQUEST)
                return bool(link.recv(1))
        except OSError:
            return False


@dataclass(frozen=True, slots=True)
class ValkeyAnswers:
    """It answers a ping, be it by an error (loading, busy)."""

    url: str

    def __call__(self, pid: int) -> bool | None:
        """Whether it answers."""
        try:
            with store_client(self.url) as client:
                client.ping()
        except redis.BusyLoadingError:
            return True
        except (redis.ConnectionError, redis.TimeoutError):
            return False
        except redis.RedisError:
            return True
        return True


@dataclass(slots=True)
class Beats:
    """When each process's heartbeat in the store was last seen to change.

    A store that takes no writes tells nothing about anybody.

    Changes are timed by our own monotonic clock: no wall clock, theirs or the store's, can make a
    living process look silent.
    """

    url: str
    _stamps: dict[str, int] = field(default_factory=dict)
    _changed_s: dict[str, float] = field(default_factory=dict)
    _is_away: bool = True
    _read_s: float = float("-inf")

    def age_s(self, name: str, pid: int) -> float | None:
        """Seconds since its last word (0 at the first look); None while the store is away."""
        now_s = time.monotonic()
        if now_s - self._read_s >= _READ_AGAIN_AFTER_S:
            self._read_s = now_s
            self._read(now_s)
        if self._is_away:
            return None
        return now_s - self._changed_s.setdefault(f"{name}:{pid}", now_s)

    def _read(self, now_s: float) -> None:
        try:
            with store_client(self.url) as client:
                client.set(keys.WRITE_PROBE, 1, px=_WRITE_PROBE_MS)  # full, read-only: it is away
                raw = client.hgetall(keys.PROCESSES)
        except redis.RedisError:
            self._is_away = True
            return
        if self._is_away:  # nobody could say anything meanwhile
            self._changed_s.clear()
            self._is_away = False
        beats = {name.decode(): decode_heartbeat(value) for name, value in raw.items()}
        stamps = {name: beat.at_ms for name, beat in beats.items() if beat is not None}
        for name, at_ms in stamps.items():
            if self._stamps.get(name) != at_ms:
                self._changed_s[name] = now_s
        self._stamps = stamps


@dataclass(frozen=True, slots=True)
class HeartbeatAnswers:
    """Its own heartbeat goes on. A store that is away says nothing about anybody."""

    beats: Beats
    name: str

    def __call__(self, pid: int) -> bool | None:
        """Whether it lives."""
        age_s = self.beats.age_s(self.name, pid)
        return None if age_s is None else age_s <= HEARTBEAT_FRESH_S
