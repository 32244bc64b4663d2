"""What was seen of the installation's parts: plain values, gathered by `console.conditions.gather`.

None is unknown, never zero. A part that was not asked is absent, a part that was asked and did not
answer says so. A new fact gets a default, so that nobody who builds `Facts` must change.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class Answer(StrEnum):
    """What a server made of the shortest question."""

    OK = "ok"
    UNREACHABLE = "unreachable"  # nobody listens, or the network says no
    HANGING = "hanging"  # connected or connecting, and silent beyond the probe's time
    REFUSING = "refusing"  # it answers, and does not let us in
    LOADING = "loading"  # the store reads its log, the database recovers
    READ_ONLY = "read-only"  # a replica, or a server that cannot write its own disk
    FULL = "full"  # out of memory: it refuses writes


@dataclass(frozen=True, slots=True)
class SupervisorFacts:
    """Who restarts what dies. `error` is set when its file cannot be read.

    `clock_step_s`: by how much this machine's clock was last set (negative: back), as it saw.
    """

    is_known: bool = False
    is_alive: bool = False
    pid: int | None = None
    phase: str = ""
    console_url: str = ""
    gateway_url: str = ""
    error: str = ""
    clock_step_s: float | None = None
    clock_step_age_s: float | None = None


@dataclass(frozen=True, slots=True)
class ProcessFacts:
    """One process: what the supervisor wrote, what the system says, and its own last word.

    `phase` is the supervisor's (`ready`, `starting`, `backing off`, ...; empty: not supervised
    here). `is_alive` is None when no pid is known on this machine, `is_stopped` means held by a
    signal. `heartbeat_age_s` is None without a report; `expects_heartbeat` is false for servers.
    """

    name: str
    pid: int | None = None
    port: int | None = None
    phase: str = ""
    is_alive: bool | None = None
    is_stopped: bool = False
    restarts: int = 0
    last_reason: str = ""
    next_start_s: float | None = None
    not_ready: str = ""  # what its readiness page said, when it was asked and said no
    up_s: float | None = None
    expects_heartbeat: bool = True
    heartbeat_age_s: float | None = None
    lag_s: float | None = None
    note: str = ""
    trouble: str = ""
    version: str = ""
    counts: Mapping[str, int] = field(default_factory=dict)
    pool_max: int | None = None
    log: str = ""


@dataclass(frozen=True, slots=True)
class GatewayFacts:
    """One gateway's own word. `away_left_s`: how long local shares may still be given out.

    `is_direct` marks a status that its admin port gave while the store could not.
    """

    gateway_id: str
    pid: int | None = None
    address: str = ""
    age_s: float = 0.0
    up_s: float | None = None
    restarts: int | None = None
    state: str = "ready"
    store_mode: str = "shared"
    away_s: float | None = None
    away_max_s: float | None = None
    snapshot_number: int = 0
    policy: str = ""
    in_flight: int = 0
    journal_pending: int = 0
    is_journal_behind: bool = False
    trouble: str = ""
    version: str = ""
    is_direct: bool = False

    @property
    def away_left_s(self) -> float | None:
        """Seconds left of the outage time; None when it is not known."""
        if self.away_s is None or self.away_max_s is None:
            return None
        return max(0.0, self.away_max_s - self.away_s)


@dataclass(frozen=True, slots=True)
class StoreFacts:
    """The store. `clock_offset_s` is its `TIME` minus ours; counts are of buckets."""

    answer: Answer = Answer.OK
    error: str = ""
    answer_s: float | None = None
    memory_bytes: int | None = None
    max_memory_bytes: int | None = None
    is_persistent: bool | None = None
    persistence_error: str = ""
    version: str = ""
    clients: int | None = None
    clock_offset_s: float | None = None
    snapshot_number: int | None = None


@dataclass(frozen=True, slots=True)
class DatabaseFacts:
    """PostgreSQL. Missing and unknown migrations: the code compared with what is applied."""

    answer: Answer = Answer.OK
    error: str = ""
    answer_s: float | None = None
    version: str = ""
    connections: int | None = None
    max_connections: int | None = None
    differences: int | None = None  # what the last reconciliation left wrong
    missing_migrations: tuple[str, ...] = ()
    unknown_migrations: tuple[str, ...] = ()
    is_schema_damaged: bool = False


@dataclass(frozen=True, slots=True)
class DiskFacts:
    """A directory that must take writes. `name` says whose: `state`, `journal`."""

    name: str
    path: str = ""
    free_bytes: int | None = None
    size_bytes: int | None = None
    error: str = ""

    @property
    def free_ratio(self) -> float | None:
        """Free share of the file system."""
        if self.free_bytes is None or not self.size_bytes:
            return None
        return self.free_bytes / self.size_bytes


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """A replica's process: started on this machine (then its pid is known), or reported.

    `is_alive` is None for one that runs elsewhere: `health` is then all that is known. `cause` says
    why it is not well.
    """

    name: str
    is_alive: bool | None = None
    pid: int | None = None
    host: str = ""
    port: int | None = None
    pool: str = ""
    model: str = ""
    version: str = ""
    health: str = ""
    cause: str = ""


@dataclass(frozen=True, slots=True)
class Facts:
    """Everything that the rules judge. `code_version` is what lies on disk here."""

    supervisor: SupervisorFacts = SupervisorFacts()
    processes: tuple[ProcessFacts, ...] = ()
    gateways: tuple[GatewayFacts, ...] = ()
    store: StoreFacts = StoreFacts()
    database: DatabaseFacts | None = None
    disks: tuple[DiskFacts, ...] = ()
    engines: tuple[EngineFacts, ...] = ()
    code_version: str = ""
