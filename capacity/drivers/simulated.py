"""Replicas that are `python -m capacity.engine` processes on this machine."""

import os
import socket
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from capacity.drivers.base import DriverError, PoolSpec
from capacity.drivers.local import LOOPBACK, Launch, LocalDriver
from capacity.simulation.catalogue import PROFILES

BACKLOG = 2048
# Live calls get this long when a replica is told to stop, whoever tells it.
DEFAULT_DRAIN_S = 20

MAX_TEXT_CHARS = 400
# Settings of a pool's spec: the engine's flag for each, and its smallest and largest value. Blocks
# are kept one by one in the engine's memory: a million of them take some 150 MB.
_WHOLE: dict[str, tuple[str, int, int]] = {
    "max_num_seqs": ("--max-num-seqs", 1, 4096),
    "max_num_batched_tokens": ("--max-num-batched-tokens", 1, 1_048_576),
    "max_model_len": ("--max-model-len", 64, 4_194_304),
    "long_prefill_tokens": ("--long-prefill-token-threshold", 0, 4_194_304),
    "kv_blocks": ("--kv-blocks", 2, 1_000_000),
    "max_num_queued_reqs": ("--max-num-queued-reqs", 1, 100_000),
    "max_num_queued_tokens": ("--max-num-queued-tokens", 1, 1_000_000_000),
    "drain_s": ("--shutdown-timeout", 0, 3600),
}
_NUMBERS: dict[str, tuple[str, float, float]] = {
    "time_scale": ("--time-scale", 0.001, 1000),
    "load_s": ("--load-seconds", 0, 3600),
}
# Texts: the flag, and the values it may have (none: any text).
_TEXTS: dict[str, tuple[str, tuple[str, ...]]] = {
    "profile": ("--profile", tuple(PROFILES)),
    "scheduling_policy": ("--scheduling-policy", ("fcfs", "priority")),
    "metric_names": ("--metric-names", ("new", "old")),
    "faults": ("--faults", ()),
    "artifact": ("--artifact", ()),
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
    """Command line of a pool's settings. Raises `DriverError` naming the setting and its range."""
    flags = ["--shutdown-timeout", str(DEFAULT_DRAIN_S)]
    for name, value in settings.items():
        if name in _WHOLE:
            flag = _whole(name, value)
        elif name in _NUMBERS:
            flag = _number(name, value)
        elif name in _TEXTS:
            flag = _text(name, value)
        else:
            known = ", ".join(sorted((*_WHOLE, *_NUMBERS, *_TEXTS)))
            raise DriverError(
                f"the simulated driver knows no setting {name[:MAX_TEXT_CHARS]!r}, only {known}"
            )
        flags += [flag, str(value)]
    return flags


def _whole(name: str, value: object) -> str:
    flag, least, most = _WHOLE[name]
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise DriverError(f"setting {name!r} must be a whole number from {least:,} to {most:,}")
    return flag


def _number(name: str, value: object) -> str:
    flag, least, most = _NUMBERS[name]
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not least <= value <= most:  # type: ignore[operator]
        raise DriverError(f"setting {name!r} must be a number from {least:g} to {most:g}")
    return flag


def _text(name: str, value: object) -> str:
    flag, choices = _TEXTS[name]
    if choices and value not in choices:
        raise DriverError(f"setting {name!r} must be one of {', '.join(choices)}")
    # A value that looks like a flag would be taken for one; NUL ends an argument.
    is_text = isinstance(value, str) and len(value) <= MAX_TEXT_CHARS
    if not is_text or str(value).startswith("-") or "\0" in str(value):
        raise DriverError(
            f"setting {name!r} must be a text of at most {MAX_TEXT_CHARS} characters"
            " that does not begin with -"
        )
    return flag
