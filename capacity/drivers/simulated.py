"""Replicas that are `python -m capacity.engine` processes on this machine."""

import os
import socket
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from capacity.drivers.base import DriverError, PoolSpec
from capacity.drivers.local import LOOPBACK, Launch, LocalDriver
from capacity.simulation.profiles import PROFILES

BACKLOG = 2048
# Live calls get this long when a replica is told to stop, whoever tells it.
DEFAULT_DRAIN_S = 20

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
    "artifact": ("--artifact", str),
}
# What the engine process may know: no keys, no addresses of our servers.
_ENVIRONMENT = ("PATH", "LANG", "LC_ALL", "TZ", "PYTHONPATH", "VIRTUAL_ENV", "HOME")


class SimulatedDriver(LocalDriver):
    """Starts and stops engine processes under one state directory."""

    def __init__(self, state_dir: Path, code_dir: Path) -> None:
        super().__init__(state_dir)
        self._code_dir = code_dir

    def check(self, spec: PoolSpec) -> None:
        """Raise `DriverError` for an unknown setting, profile or type."""
        _flags(spec.settings)

    def expected_root(self, spec: PoolSpec) -> str:
        """The artifact of its settings, else the model's name."""
        return str(spec.settings.get("artifact") or spec.model)

    @contextmanager
    def launch(self, spec: PoolSpec, ordinal: int) -> Iterator[Launch]:
        """The engine on a listening socket that is made here and handed over.

        So no port can be lost in between.
        """
        flags = _flags(spec.settings)
        with socket.create_server((LOOPBACK, 0), backlog=BACKLOG) as listener:
            port = listener.getsockname()[1]
            command = [sys.executable, "-m", "capacity.engine", "--model", spec.model]
            command += ["--host", LOOPBACK, "--port", str(port), "--fd", str(listener.fileno())]
            command += ["--block-size", str(spec.block_size_tokens), "--seed", str(ordinal)]
            kept = {key: os.environ[key] for key in _ENVIRONMENT if key in os.environ}
            yield Launch(
                [*command, *flags], kept, port, self._code_dir, inherited=(listener.fileno(),)
            )


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
