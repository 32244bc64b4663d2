"""Replicas that are processes of this machine: what the simulated and the vLLM driver share.

Each runs in a session of its own, so it outlives the worker that started it. Its pid, start time
and port are in `replicas/<name>.json` of the state directory before anybody else hears of it; a
worker that finds a live process there adopts it instead of starting a second. Its environment says
whose it is and what it serves, so a process whose record was never written is found and ended, and
one that was started for other settings is not taken for the right one.
"""

import hashlib
import json
import re
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from capacity.drivers.base import (
    DriverError,
    Handle,
    Identity,
    Observed,
    PoolSpec,
    ReplicaStatus,
)
from capacity.drivers.engine_client import completes, identity, look
from capacity.drivers.processes import (
    ProcessRecord,
    boot_id,
    carries,
    end,
    holds_port,
    marked_sessions,
    read_record,
    reap,
    record_of,
    start_ticks,
    write_record,
)

LOOPBACK = "127.0.0.1"
MAX_LOG_BYTES = 8 * 1024 * 1024  # an engine logs a line or two; more is a fault, kept bounded
STRAY_DRAIN_S = 1.0  # nothing is routed to a process that is on no record
_SAFE_NAME = re.compile(r"[a-z0-9][a-z0-9_-]*-\d+")

STATE_VARIABLE = "HEADRACE_STATE"
REPLICA_VARIABLE = "HEADRACE_REPLICA"
SPEC_VARIABLE = "HEADRACE_REPLICA_SPEC"


@dataclass(frozen=True, slots=True)
class Launch:
    """A process to start: it shall listen on `port` of the loopback address.

    `inherited` are handles that it gets.
    """

    argv: Sequence[str]
    environment: Mapping[str, str]
    port: int
    directory: Path
    inherited: tuple[int, ...] = ()


class LocalDriver(ABC):
    """Starts, finds and stops processes under one state directory."""

    def __init__(self, state_dir: Path) -> None:
        self.state_dir = state_dir
        self._records = state_dir / "replicas"
        self._logs = state_dir / "logs"

    @abstractmethod
    def check(self, spec: PoolSpec) -> None:
        """Raise `DriverError` when the settings cannot work."""

    @abstractmethod
    def launch(self, spec: PoolSpec, ordinal: int) -> AbstractContextManager[Launch]:
        """What to run, with anything that must stay open until it runs. Raises `DriverError`."""

    def told(self, name: str) -> Mapping[str, str]:
        """What a replica's handle says beside its process."""
        return {}

    def forget(self, name: str) -> None:  # noqa: B027 - most leave nothing behind
        """Remove what a replica that has ended left outside its record."""

    def start(self, spec: PoolSpec, ordinal: int) -> Handle:
        """Start the replica's process, or adopt the live one that its file names."""
        name = spec.replica_name(ordinal)
        path = self._path(name)
        self.check(spec)
        present = read_record(path)
        mark = {**self._owner(name), SPEC_VARIABLE: spec_digest(spec)}
        try:
            if present is not None and present.is_alive and carries(present.pid, mark):
                return {**present.to_handle(), **self.told(name)}
            self._clear(name, present)
            self._records.mkdir(parents=True, exist_ok=True)
            self._logs.mkdir(parents=True, exist_ok=True)
            with self.launch(spec, ordinal) as wanted:
                record = self._spawn(name, wanted, mark)
            write_record(path, record)
        except OSError as error:
            raise DriverError(f"cannot start {name}: {error}") from error
        return {**record.to_handle(), **self.told(name)}

    def _owner(self, name: str) -> dict[str, str]:
        return {STATE_VARIABLE: str(self.state_dir), REPLICA_VARIABLE: name}

    def _clear(self, name: str, present: ProcessRecord | None) -> None:
        """End processes that were started for this replica: other settings, or no record."""
        found = [present] if present is not None else []
        found += [
            ProcessRecord(name, pid, ticks, boot_id(), LOOPBACK, 0)
            for pid, ticks in marked_sessions(self._owner(name))
        ]
        for record in found:
            end(record, STRAY_DRAIN_S, self._owner(name))

    def _spawn(self, name: str, wanted: Launch, mark: Mapping[str, str]) -> ProcessRecord:
        with self.log(name).open("ab") as log:
            process = subprocess.Popen(  # noqa: S603 - a program of ours, flags checked
                list(wanted.argv),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=wanted.directory,
                env={**wanted.environment, **mark},
                pass_fds=wanted.inherited,
                start_new_session=True,
            )
        ticks = start_ticks(process.pid)
        return ProcessRecord(name, process.pid, ticks or 0, boot_id(), LOOPBACK, wanted.port)

    def log(self, name: str) -> Path:
        """The replica's log; a large one is set aside first."""
        path = self._logs / f"{name}.log"
        if path.exists() and path.stat().st_size > MAX_LOG_BYTES:
            path.replace(path.with_suffix(".log.old"))
        return path

    def status(self, spec: PoolSpec, handle: Handle, *, wait_s: float = 1.0) -> ReplicaStatus:
        """Gone unless that very process lives; then what its server says.

        `wrong` when the port is not the process's own, or another model answers there.
        """
        record = record_of(handle)
        if record is None:
            return ReplicaStatus(Observed.GONE, cause="never started")
        at = (record.host, record.port)
        if not record.is_alive:
            reap(record.pid)
            return ReplicaStatus(Observed.GONE, *at, self.why_ended(record))
        is_own = holds_port(record, self._owner(record.name))
        if is_own is None:
            return self.loading(spec, record)
        if not is_own:
            return ReplicaStatus(Observed.WRONG, *at, "another process holds its port")
        return look(*at, spec.model, wait_s)

    def loading(self, spec: PoolSpec, record: ProcessRecord) -> ReplicaStatus:
        """What a live process that does not listen yet counts as."""
        return ReplicaStatus(Observed.STARTING, record.host, record.port, "does not listen yet")

    def why_ended(self, record: ProcessRecord) -> str:
        """Cause for a process that is no more."""
        return "its process ended"

    def expected_root(self, spec: PoolSpec) -> str:
        """What an engine of this spec names as loaded; empty if that cannot be known."""
        return ""

    def identify(self, spec: PoolSpec, handle: Handle) -> Identity | None:
        """What its server says of itself."""
        record = record_of(handle)
        if record is None:
            return None
        return identity(record.host, record.port, spec.model, self.expected_root(spec))

    def probe(self, spec: PoolSpec, handle: Handle) -> bool:
        """Whether the engine completes one token."""
        record = record_of(handle)
        return record is not None and completes(record.host, record.port, spec.model)

    def stop(self, handle: Handle, drain_s: float) -> None:
        """SIGTERM, on which the engine drains; SIGKILL after `drain_s` for it and what it started.

        Its file goes last.
        """
        record = record_of(handle)
        if record is None:
            return
        end(record, drain_s, self._owner(record.name))
        path = self._path(record.name)
        if read_record(path) == record:
            self.forget(record.name)
            path.unlink(missing_ok=True)

    def _path(self, name: str) -> Path:
        if not _SAFE_NAME.fullmatch(name):
            raise DriverError(f"{name!r} cannot name a file")
        return self._records / f"{name}.json"


def spec_digest(spec: PoolSpec) -> str:
    """Changes with anything that a running process would have to be started anew for."""
    told = [spec.model, spec.block_size_tokens, dict(spec.settings)]
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()[:16]
