"""Replicas that are local `vllm serve` processes: our own CPU build, or a GPU host's vLLM.

vLLM takes no listening socket from its parent. So the port is held by a bound socket that the
replica inherits: nobody else is given it, while vLLM, which sets SO_REUSEADDR as we do, may bind
it. If a process still takes it, vLLM ends, and the next start has another port.
"""

import os
import re
import socket
import stat
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from capacity.drivers.base import DriverError, Observed, PoolSpec, ReplicaStatus
from capacity.drivers.local import LOOPBACK, Launch, LocalDriver
from capacity.drivers.processes import ProcessRecord
from capacity.drivers.vllm_env import require_environment
from capacity.drivers.vllm_serve import (
    CPU_BLOCK_TOKENS,
    DEFAULT_MODEL,
    Serve,
    checked_extra_args,
    is_local_model,
    kv_addresses,
    local_model,
    private_socket_directory,
    remove_sockets,
)

# Each number's smallest and largest sensible value.
_NUMBERS = {
    "max_num_seqs": (1, 4096),
    "max_model_len": (64, 4_194_304),
    "num_gpu_blocks_override": (2, 100_000_000),
    "max_num_queued_reqs": (1, 100_000),
    "kv_space_gib": (1, 4096),
    "shutdown_timeout_s": (0, 3600),
    "load_limit_s": (5, 3600),
}
_TEXTS = ("model", "executable")
# A tiny model loads in 35 s on a quiet pair of cores; weights of a large one take minutes.
LOAD_LIMIT_S = 600
LAST_WORDS_BYTES = 4096
_HUB_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*")
_WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH


class ProcessDriver(LocalDriver):
    """Starts and stops vLLM under one state directory."""

    def __init__(self, state_dir: Path, code_dir: Path) -> None:
        super().__init__(state_dir)
        self._code_dir = code_dir

    def check(self, spec: PoolSpec) -> None:
        """Raise `DriverError` for an unknown setting, a wrong type, or what cannot be served.

        That vLLM is installed is asked at each start, not here: a pool may be made before it is.
        """
        settings = {name: _checked(name, value) for name, value in spec.settings.items()}
        model = settings.get("model", DEFAULT_MODEL)
        executable = settings.get("executable")
        if executable is None:
            if not is_local_model(model) and not Path(model).is_dir():
                raise DriverError(
                    f"setting 'model': {model!r} is neither a local model nor a directory here; "
                    "a model of a hub needs a vLLM of your own (setting 'executable')"
                )
            if spec.block_size_tokens % CPU_BLOCK_TOKENS:
                raise DriverError(
                    "the pool's block_size_tokens must be a multiple of "
                    f"{CPU_BLOCK_TOKENS} on a CPU, not {spec.block_size_tokens}"
                )
            return
        _require_executable(Path(executable))
        if not (is_local_model(model) or Path(model).is_dir() or _HUB_ID.fullmatch(model)):
            raise DriverError(f"setting 'model': {model!r} is no directory and no hub id")

    @contextmanager
    def launch(self, spec: PoolSpec, ordinal: int) -> Iterator[Launch]:
        """`vllm serve` on a port that is held for it. Raises `DriverError`."""
        name = spec.replica_name(ordinal)
        settings: dict[str, Any] = {**spec.settings}
        chosen = settings.pop("executable", None)
        settings.pop("load_limit_s", None)
        model = settings.pop("model", DEFAULT_MODEL)
        executable = Path(chosen) if chosen else require_environment(self._code_dir).executable
        private_socket_directory(self.state_dir)
        with _held_port() as held:
            serve = Serve(
                executable=executable,
                model=self._weights(model),
                served_name=spec.model,
                port=held.getsockname()[1],
                name=name,
                state_dir=self.state_dir,
                is_cpu=chosen is None,
                block_size_tokens=spec.block_size_tokens,
                **settings,
            )
            yield Launch(
                serve.argv, serve.environment, serve.port, self.state_dir, (held.fileno(),)
            )

    def expected_root(self, spec: PoolSpec) -> str:
        """The path, or hub id, that vLLM was given as its model."""
        return self._weights(str(spec.settings.get("model", DEFAULT_MODEL)))

    def _weights(self, model: str) -> str:
        return str(local_model(model, self.state_dir)) if is_local_model(model) else model

    def told(self, name: str) -> Mapping[str, str]:
        """Where its KV events are."""
        return kv_addresses(self.state_dir, name)

    def forget(self, name: str) -> None:
        """Remove its sockets."""
        remove_sockets(self.state_dir, name)

    def loading(self, spec: PoolSpec, record: ProcessRecord) -> ReplicaStatus:
        """Starting, until the setting `load_limit_s` has passed."""
        limit_s = int(spec.settings.get("load_limit_s", LOAD_LIMIT_S))
        if _age_s(record) > limit_s:
            cause = f"not loaded within {limit_s} s"
            return ReplicaStatus(Observed.GONE, record.host, record.port, cause)
        return ReplicaStatus(Observed.STARTING, record.host, record.port, "loading its model")

    def why_ended(self, record: ProcessRecord) -> str:
        """That it ended, and the last line that it logged."""
        try:
            with self.log(record.name).open("rb") as log:
                log.seek(max(0, log.seek(0, os.SEEK_END) - LAST_WORDS_BYTES))
                lines = log.read().decode(errors="replace").split("\n")
        except OSError:
            lines = []
        said = next((line.strip() for line in reversed(lines) if line.strip()), "")
        return f"its process ended: {said}" if said else "its process ended"


@contextmanager
def _held_port() -> Iterator[socket.socket]:
    """A port of the loopback address, bound and not listening."""
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind((LOOPBACK, 0))
        yield held


def _age_s(record: ProcessRecord) -> float:
    """How long the process has run."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) - record.ticks / os.sysconf("SC_CLK_TCK")


def _checked(name: str, value: object) -> Any:
    if name in _NUMBERS:
        least, most = _NUMBERS[name]
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise DriverError(f"setting {name!r} must be a whole number from {least} to {most}")
        return value
    if name == "extra_args":
        return checked_extra_args(value)
    if name in _TEXTS:
        if not isinstance(value, str) or not value:
            raise DriverError(f"setting {name!r} must be a text")
        return value
    if name == "block_size":
        raise DriverError("setting 'block_size' is the pool's own block_size_tokens: set that")
    known = ", ".join(sorted((*_NUMBERS, *_TEXTS, "extra_args")))
    raise DriverError(f"the process driver knows no setting {name!r}, only {known}")


def _require_executable(path: Path) -> None:
    """A pool's settings come over the API: they may choose a vLLM, not run anything they like."""
    if not path.is_absolute() or path.name != "vllm":
        raise DriverError("setting 'executable' must be the absolute path of a program named vllm")
    try:
        found = path.stat()
    except OSError as error:
        raise DriverError(f"setting 'executable': {path}: {error.strerror}") from error
    if not stat.S_ISREG(found.st_mode) or not os.access(path, os.X_OK):
        raise DriverError(f"setting 'executable': {path} cannot be run")
    if found.st_mode & _WRITABLE_BY_OTHERS or found.st_uid not in (0, os.geteuid()):
        raise DriverError(f"setting 'executable': others may write to {path}")
