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

from console.supervisor.probes import (
    HEARTBEAT_FRESH_S,
    PROBE_TIMEOUT_S,
    decode_heartbeat,
    store_client,
)
from routing.store import keys

_SSL_REQUEST = struct.pack("!ii", 8, 80877103)  # answered by `S` or `N` before any login
_READ_AGAIN_AFTER_S = 2.0  # one look at the store serves all who ask in the same round


@dataclass(frozen=True, slots=True)
class HttpAnswers:
    """Any answer to `GET /healthz`, which looks at no other part."""

    host: str
    port: int

    def __call__(self, pid: int) -> bool | None:
        """Whether it answers."""
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
    """All heartbeats in the store, by field; None while it does not answer."""

    url: str
    _found: dict[str, float] | None = None
    _read_s: float = field(default=-_READ_AGAIN_AFTER_S)

    def age_s(self, name: str, pid: int) -> float | None:
        """Age of a process's last word by the store's clock; infinite if it said none."""
        if time.monotonic() - self._read_s >= _READ_AGAIN_AFTER_S:
            self._found = self._read()
            self._read_s = time.monotonic()
        return None if self._found is None else self._found.get(f"{name}:{pid}", float("inf"))

    def _read(self) -> dict[str, float] | None:
        try:
            with store_client(self.url) as client:
                seconds, micros = client.time()
                raw = client.hgetall(keys.PROCESSES)
        except redis.RedisError:
            return None
        now_s = seconds + micros / 1e6
        beats = {name.decode(): decode_heartbeat(value) for name, value in raw.items()}
        return {name: now_s - beat.at_ms / 1000 for name, beat in beats.items() if beat}


@dataclass(frozen=True, slots=True)
class HeartbeatAnswers:
    """Its own heartbeat is fresh. A store that is away says nothing about anybody."""

    beats: Beats
    name: str

    def __call__(self, pid: int) -> bool | None:
        """Whether it lives."""
        age_s = self.beats.age_s(self.name, pid)
        return None if age_s is None else abs(age_s) <= HEARTBEAT_FRESH_S
