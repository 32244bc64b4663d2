"""Replicas that are `python -m capacity.engine` processes on this machine.

Each runs in a session of its own, so it outlives the worker that started it. Its pid, start time
and port are in `replicas/<name>.json` of the state directory before anybody else hears of it; a
worker that finds a live process there adopts it instead of starting a second.
"""

import os
import re
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from capacity.drivers.base import DriverError, Handle, Observed, PoolSpec, ReplicaStatus
from capacity.drivers.engine_client import completes, look
from capacity.drivers.processes import (
    ProcessRecord,
    boot_id,
    end,
    read_record,
    reap,
    record_of,
    start_ticks,
    write_record,
)
from capacity.simulation.profiles import PROFILES

LOOPBACK = "127.0.0.1"
BACKLOG = 2048
# Live calls get this long when a replica is told to stop, whoever tells it.
DEFAULT_DRAIN_S = 20
MAX_LOG_BYTES = 8 * 1024 * 1024  # an engine logs a line or two; more is a fault, kept bounded
_SAFE_NAME = re.compile(r"[a-z0-9][a-z0-9_-]*-\d+")

# Settings of a pool's spec, the engine's flag for each, and the type it must have.
_FLAGS: dict[str, tuple[str, type]] = {
    "profile": ("--profile", str),
    "max_num_seqs": ("--max-num-seqs", int),
    "max_num_batched_tokens": ("--max-num-batched-tokens", int),
    "max_model_len": ("--max-model-len", int),
    "long_prefill_tokens": ("--long-prefill-token-threshold", int),
    "kv_blocks": ("--kv-blocks", int),
    "scheduling_policy": ("--scheduling-policy", str),
    "max_num_queued_reqs": ("--max-num-queued-reqs", int),
    "max_num_queued_tokens": ("--max-num-queued-tokens", int),
    "drain_s": ("--shutdown-timeout", int),
    "time_scale": ("--time-scale", float),
    "load_s": ("--load-seconds", float),
    "metric_names": ("--metric-names", str),
    "faults": ("--faults", str),
}
# What the engine process may know: no keys, no addresses of our servers.
_ENVIRONMENT = ("PATH", "LANG", "LC_ALL", "TZ", "PYTHONPATH", "VIRTUAL_ENV", "HOME")


class SimulatedDriver:
    """Starts and stops engine processes under one state directory."""

    def __init__(self, state_dir: Path, code_dir: Path) -> None:
        self._state_dir = state_dir
        self._records = state_dir / "replicas"
        self._logs = state_dir / "logs"
        self._code_dir = code_dir

    def check(self, spec: PoolSpec) -> None:
        """Raise `DriverError` for an unknown setting, profile or type."""
        _flags(spec.settings)

    def start(self, spec: PoolSpec, ordinal: int) -> Handle:
        """Start the replica's process, or adopt the live one that its file names."""
        name = spec.replica_name(ordinal)
        path = self._path(name)
        present = read_record(path)
        if present is not None and present.is_alive:
            return present.to_handle()
        flags = _flags(spec.settings)
        try:
            self._records.mkdir(parents=True, exist_ok=True)
            self._logs.mkdir(parents=True, exist_ok=True)
            record = self._spawn(name, spec, ordinal, flags)
        except OSError as error:
            raise DriverError(f"cannot start {name}: {error}") from error
        write_record(path, record)
        return record.to_handle()

    def _spawn(self, name: str, spec: PoolSpec, ordinal: int, flags: list[str]) -> ProcessRecord:
        # The listening socket is made here and handed over: no port can be lost in between.
        with socket.create_server((LOOPBACK, 0), backlog=BACKLOG) as listener:
            port = listener.getsockname()[1]
            command = [sys.executable, "-m", "capacity.engine", "--model", spec.model]
            command += ["--host", LOOPBACK, "--port", str(port), "--fd", str(listener.fileno())]
            command += ["--block-size", str(spec.block_size_tokens), "--seed", str(ordinal)]
            with self._log(name).open("ab") as log:
                process = subprocess.Popen(  # noqa: S603 - our interpreter and module, checked flags
                    [*command, *flags],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    cwd=self._code_dir,
                    env=self._environment(),
                    pass_fds=(listener.fileno(),),
                    start_new_session=True,
                )
        ticks = start_ticks(process.pid)
        return ProcessRecord(name, process.pid, ticks or 0, boot_id(), LOOPBACK, port)

    def _environment(self) -> dict[str, str]:
        kept = {key: os.environ[key] for key in _ENVIRONMENT if key in os.environ}
        # Not read by the engine: names the installation that the process belongs to.
        return {**kept, "HEADRACE_STATE": str(self._state_dir)}

    def _log(self, name: str) -> Path:
        path = self._logs / f"{name}.log"
        if path.exists() and path.stat().st_size > MAX_LOG_BYTES:
            path.replace(path.with_suffix(".log.old"))
        return path

    def status(self, spec: PoolSpec, handle: Handle, *, wait_s: float = 1.0) -> ReplicaStatus:
        """Gone unless that very process lives; then what its server says."""
        record = record_of(handle)
        if record is None:
            return ReplicaStatus(Observed.GONE, cause="never started")
        if not record.is_alive:
            reap(record.pid)
            return ReplicaStatus(Observed.GONE, record.host, record.port, "its process ended")
        return look(record.host, record.port, spec.model, wait_s)

    def probe(self, spec: PoolSpec, handle: Handle) -> bool:
        """Whether the engine completes one token."""
        record = record_of(handle)
        return record is not None and completes(record.host, record.port, spec.model)

    def stop(self, handle: Handle, drain_s: float) -> None:
        """SIGTERM, on which the engine drains; SIGKILL after `drain_s`; its file goes last."""
        record = record_of(handle)
        if record is None:
            return
        end(record, drain_s)
        path = self._path(record.name)
        if read_record(path) == record:
            path.unlink(missing_ok=True)

    def _path(self, name: str) -> Path:
        if not _SAFE_NAME.fullmatch(name):
            raise DriverError(f"{name!r} cannot name a file")
        return self._records / f"{name}.json"


def _flags(settings: Mapping[str, object]) -> list[str]:
    """Command line of a pool's settings. Raises `DriverError`."""
    flags = ["--shutdown-timeout", str(DEFAULT_DRAIN_S)]
    for name, value in settings.items():
        if name not in _FLAGS:
            known = ", ".join(sorted(_FLAGS))
            raise DriverError(f"the simulated driver knows no setting {name!r}, only {known}")
        flag, kind = _FLAGS[name]
        is_number = kind is float and isinstance(value, int)
        if isinstance(value, bool) or not (isinstance(value, kind) or is_number):
            raise DriverError(f"setting {name!r} must be of type {kind.__name__}")
        flags += [flag, str(value)]
    profile = settings.get("profile")
    if profile is not None and profile not in PROFILES:
        raise DriverError(f"no engine profile {profile!r}: choose one of {', '.join(PROFILES)}")
    return flags
