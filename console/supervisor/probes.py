"""Is a process ready? Each probe gives the reason why not, empty when it is.

A probe never raises and never waits longer than `PROBE_TIMEOUT_S`, so that the supervisor can ask
inside its loop.
"""

import http.client
import time
from dataclasses import dataclass

import msgspec
import psycopg
import redis

from console.supervisor import ports
from routing.contracts.process import ProcessStatus, decode_process_status
from routing.contracts.snapshot import SnapshotError, decode_snapshot
from routing.store import keys
from routing.store.pooled import sync_client
from routing.store.state import read_snapshot, read_snapshot_number

PROBE_TIMEOUT_S = 1.0
HEARTBEAT_FRESH_S = 10.0  # readers of process statuses treat older ones as gone
_BODY_BYTES = 160  # a reason, not a page


@dataclass(frozen=True, slots=True)
class HttpProbe:
    """Ready when `GET path` answers 200; `is_own`: and it is the process itself that listens."""

    host: str
    port: int
    path: str = "/readyz"
    is_own: bool = False

    def __call__(self, pid: int) -> str:
        """Reason, or empty."""
        if self.is_own and ports.listens(pid, self.port) is False:
            return f"does not listen on port {self.port} yet"
        connection = http.client.HTTPConnection(self.host, self.port, timeout=PROBE_TIMEOUT_S)
        try:
            connection.request("GET", self.path)
            answer = connection.getresponse()
            if answer.status == 200:
                return ""
            body = " ".join(answer.read(_BODY_BYTES).decode(errors="replace").split())
        except (OSError, http.client.HTTPException) as error:
            return f"no answer from {self.path} ({error})"
        finally:
            connection.close()
        return f"{self.path} answers {answer.status} {body}".strip()


@dataclass(frozen=True, slots=True)
class GatewayProbe:
    """As `HttpProbe` on the admin port, but before the first policy there is nothing to wait for.

    An installation without a published policy is complete: its gateways refuse until there is one.
    """

    host: str
    port: int
    redis_url: str

    def __call__(self, pid: int) -> str:
        """Reason, or empty."""
        reason = HttpProbe(self.host, self.port, is_own=True)(pid)
        if not reason or HttpProbe(self.host, self.port, "/healthz")(pid):
            return reason
        try:
            with store_client(self.redis_url) as client:
                return reason if read_snapshot_number(client) else ""
        except redis.RedisError:
            return reason


@dataclass(frozen=True, slots=True)
class HeartbeatProbe:
    """Ready when the process has written its own fresh status into the store."""

    redis_url: str
    name: str

    def __call__(self, pid: int) -> str:
        """Reason, or empty."""
        try:
            with store_client(self.redis_url) as client:
                raw = client.hget(keys.PROCESSES, f"{self.name}:{pid}")
        except redis.RedisError as error:
            return f"the store does not answer ({error})"
        status = decode_heartbeat(raw)
        if status is None:
            return "has not reported yet"
        age_s = time.time() - status.at_ms / 1000
        return "" if age_s <= HEARTBEAT_FRESH_S else f"last reported {age_s:.0f} s ago"


@dataclass(frozen=True, slots=True)
class PostgresProbe:
    """Ready when it lets us in: during crash recovery it answers, but does not."""

    url: str

    def __call__(self, pid: int) -> str:
        """Reason, or empty."""
        try:
            with psycopg.connect(self.url, connect_timeout=2) as connection:
                connection.execute("SELECT 1")
        except psycopg.Error as error:
            return str(error).strip().rpartition("\n")[2][:200]
        return ""


@dataclass(frozen=True, slots=True)
class ValkeyProbe:
    """Ready when it has loaded its log and answers a ping."""

    url: str

    def __call__(self, pid: int) -> str:
        """Reason, or empty."""
        try:
            with store_client(self.url) as client:
                client.ping()
        except redis.RedisError as error:
            return str(error)
        return ""


@dataclass(frozen=True, slots=True)
class PoolsProbe:
    """Ready when each of these pools is in the published snapshot with a replica that answers."""

    redis_url: str
    pools: frozenset[str]

    def __call__(self, pid: int) -> str:
        """Reason, or empty."""
        try:
            with store_client(self.redis_url) as client:
                raw = read_snapshot(client)
            snapshot = decode_snapshot(raw) if raw else None
        except (redis.RedisError, SnapshotError) as error:
            return str(error)
        if snapshot is None:
            return "no snapshot is published yet"
        for name in sorted(self.pools):
            pool = snapshot.pools.get(name)
            found = pool.endpoints if pool else ()
            probes = [HttpProbe(at.host, at.port, "/health") for at in found]
            if not any(probe(pid) == "" for probe in probes):
                return f"pool {name} has no replica that answers"
        return ""


def store_client(url: str) -> redis.Redis:
    """A client for one question, with the probes' time limit."""
    return sync_client(url, timeout_s=PROBE_TIMEOUT_S)


def decode_heartbeat(raw: object) -> ProcessStatus | None:
    """A stored status; None if there is none or another version wrote it."""
    if not isinstance(raw, bytes):
        return None
    try:
        return decode_process_status(raw)
    except msgspec.MsgspecError:
        return None
