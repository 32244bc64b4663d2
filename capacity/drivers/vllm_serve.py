"""The command line and the environment of one `vllm serve` on this machine."""

import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from capacity.drivers.base import DriverError
from capacity.drivers.local import LOOPBACK
from capacity.drivers.vllm_models import SHAPES, ModelError, ensure_model

# vLLM's CPU kernels want blocks of 32 tokens or a multiple; its own default of 128 makes prefix
# hits coarse.
CPU_BLOCK_TOKENS = 32
DEFAULT_MODEL = "tiny"
# Live calls get this long after SIGTERM, which vLLM would else cut off at once.
DEFAULT_SHUTDOWN_S = 20
MAX_SOCKET_PATH_BYTES = 100  # Linux allows 107, ZeroMQ's own prefix is not counted
_DIGEST_NAME_BYTES = 20  # of a name too long to stand in the path as it is

# Flags that a person may add: sizes and kernels of the engine. None opens a file or an address,
# loads code, or changes what a replica is called.
EXTRA_FLAGS = frozenset(
    {
        "--async-scheduling",
        "--calculate-kv-scales",
        "--compilation-config",
        "--data-parallel-size",
        "--disable-log-stats",
        "--dtype",
        "--enable-auto-tool-choice",
        "--enable-chunked-prefill",
        "--enable-expert-parallel",
        "--enforce-eager",
        "--generation-config",
        "--gpu-memory-utilization",
        "--kv-cache-dtype",
        "--load-format",
        "--long-prefill-token-threshold",
        "--max-logprobs",
        "--max-num-batched-tokens",
        "--max-num-partial-prefills",
        "--max-num-queued-tokens",
        "--no-enable-chunked-prefill",
        "--no-enforce-eager",
        "--pipeline-parallel-size",
        "--prefill-context-parallel-size",
        "--quantization",
        "--reasoning-parser",
        "--seed",
        "--stream-interval",
        "--tensor-parallel-size",
        "--tokenizer-mode",
        "--tool-call-parser",
    }
)
_EXTRA = re.compile(r"(--[a-z][a-z0-9-]*)(?:=[A-Za-z0-9._,:+-]{1,100})?")
_INHERITED = (
    "PATH",
    "LANG",
    "LC_ALL",
    "TZ",
    "HOME",
    "TMPDIR",
    "LD_LIBRARY_PATH",
    "CUDA_HOME",
    "CUDA_VISIBLE_DEVICES",
    "NVIDIA_VISIBLE_DEVICES",
    "HF_HOME",
    "VLLM_CACHE_ROOT",
    "OMP_NUM_THREADS",
    "VLLM_CPU_OMP_THREADS_BIND",
)


@dataclass(frozen=True, slots=True)
class Serve:
    """What one `vllm serve` runs with. `model` is a directory or a hub id.

    `is_cpu` means our own CPU build: it gets the flags that only make sense there.
    """

    executable: Path
    model: str
    served_name: str
    port: int
    name: str
    state_dir: Path
    is_cpu: bool = True
    block_size_tokens: int = CPU_BLOCK_TOKENS
    max_num_seqs: int = 16
    max_model_len: int = 4096
    num_gpu_blocks_override: int | None = None
    max_num_queued_reqs: int | None = None
    kv_space_gib: int = 1
    shutdown_timeout_s: int = DEFAULT_SHUTDOWN_S
    extra_args: Sequence[str] = field(default_factory=tuple)

    @property
    def argv(self) -> list[str]:
        """The command."""
        words = [str(self.executable), "serve", self.model]
        flags: dict[str, object] = {
            "--served-model-name": self.served_name,
            "--host": LOOPBACK,
            "--port": self.port,
            "--block-size": self.block_size_tokens,
            "--max-num-seqs": self.max_num_seqs,
            "--max-model-len": self.max_model_len,
            "--scheduling-policy": "priority",
            "--shutdown-timeout": self.shutdown_timeout_s,
            "--kv-events-config": json.dumps(
                {
                    "enable_kv_cache_events": True,
                    "publisher": "zmq",
                    "endpoint": kv_addresses(self.state_dir, self.name)["kv_events"],
                    "replay_endpoint": kv_addresses(self.state_dir, self.name)["kv_replay"],
                    "topic": "kv",
                }
            ),
        }
        if self.is_cpu:
            # Full precision: which other calls share a batch must not tip a greedy answer.
            flags["--dtype"] = "float32"
        if self.num_gpu_blocks_override is not None:
            flags["--num-gpu-blocks-override"] = self.num_gpu_blocks_override
        if self.max_num_queued_reqs is not None:
            flags["--max-num-queued-reqs"] = self.max_num_queued_reqs
        for flag, value in flags.items():
            words += [flag, str(value)]
        words += [
            "--enable-prefix-caching",
            "--enable-prompt-tokens-details",
            "--enable-request-id-headers",
            "--enable-server-load-tracking",
            "--disable-uvicorn-access-log",
        ]
        if self.is_cpu:
            words.append("--enforce-eager")
        if self.is_one_process:
            words += ["--distributed-executor-backend", "uni"]
        return [*words, *self.extra_args]  # last: the later of two equal flags counts

    @property
    def is_one_process(self) -> bool:
        """Whether the engine computes in its own process instead of a worker beside it.

        vLLM's CPU build starts a worker so that it can set OpenMP's environment there; ours is set
        from the start. That saves a third of a start's CPU and 0.3 GB.
        """
        return self.is_cpu and not any("-parallel-size" in word for word in self.extra_args)

    @property
    def environment(self) -> dict[str, str]:
        """Its environment: no keys, no addresses of our servers."""
        found = {name: os.environ[name] for name in _INHERITED if name in os.environ}
        found |= {
            "VLLM_NO_USAGE_STATS": "1",
            "DO_NOT_TRACK": "1",
            "SPT_NOENV": "1",  # a process that renames itself must keep this environment readable
        }
        if self.is_cpu:
            found["VLLM_CPU_KVCACHE_SPACE"] = str(self.kv_space_gib)
            # vLLM binds each engine to the same first cores; several replicas must share them all.
            found.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
            found.setdefault("OMP_NUM_THREADS", str(threads()))
        if self.is_one_process:
            found["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # else the CPU build takes no "uni"
        if Path(self.model).is_dir():
            found |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
        return found


def threads() -> int:
    """Threads that one replica computes with, unless OMP_NUM_THREADS says it.

    Half of the cores, so that two replicas fill the machine; small models gain nothing from more
    than four.
    """
    return max(1, min(4, (os.cpu_count() or 1) // 2))


def local_model(name: str, state_dir: Path) -> Path:
    """Directory of one of our own models, made if need be. Raises `DriverError`."""
    try:
        return ensure_model(name, state_dir / "models")
    except ModelError as error:
        raise DriverError(str(error)) from error


def is_local_model(name: str) -> bool:
    """Whether it names one of the models that are made here."""
    return name in SHAPES


def checked_extra_args(raw: object) -> tuple[str, ...]:
    """Additional flags as `--name` or `--name=value`. Raises `DriverError` for any not listed."""
    if not isinstance(raw, list | tuple):
        raise DriverError("setting 'extra_args' must be a list of flags")
    for word in raw:
        found = _EXTRA.fullmatch(word) if isinstance(word, str) else None
        if found is None or found.group(1) not in EXTRA_FLAGS:
            known = ", ".join(sorted(EXTRA_FLAGS))
            raise DriverError(
                f"extra_args: {word!r} is not allowed; write --name or --name=value with {known}"
            )
    return tuple(raw)


def kv_addresses(state_dir: Path, name: str) -> dict[str, str]:
    """Where a replica publishes its KV events, and where missed ones may be asked for again.

    Sockets that only we can open: the events hold the token ids of tenants' prompts.
    """
    path = _socket_path(state_dir, name)
    return {"kv_events": f"ipc://{path}", "kv_replay": f"ipc://{path}r"}


def private_socket_directory(state_dir: Path) -> Path:
    """The directory of one state's sockets, made if need be. Raises `DriverError`."""
    path = _socket_path(state_dir, "").parent
    if len(os.fsencode(path)) > MAX_SOCKET_PATH_BYTES - _DIGEST_NAME_BYTES:
        raise DriverError(f"{path.parent} is too long for sockets: set TMPDIR to a shorter one")
    try:
        path.mkdir(mode=0o700, exist_ok=True)
        found = path.lstat()
    except OSError as error:
        raise DriverError(f"cannot make {path}: {error.strerror}") from error
    is_private = found.st_mode & 0o170777 == 0o040700
    if not is_private or found.st_uid != os.geteuid():
        raise DriverError(f"{path} is not a directory of ours with mode 0700: remove it")
    return path


def remove_sockets(state_dir: Path, name: str) -> None:
    """Forget the sockets of a replica that has ended, and the directory with the last ones."""
    path = _socket_path(state_dir, name)
    try:
        path.unlink(missing_ok=True)
        path.with_name(f"{path.name}r").unlink(missing_ok=True)
        path.parent.rmdir()
    except OSError:
        return  # others are in use


def remove_all_sockets(state_dir: Path) -> None:
    """Forget the sockets of a state whose replicas have all ended."""
    directory = _socket_path(state_dir, "").parent
    if not directory.is_symlink():
        shutil.rmtree(directory, ignore_errors=True)


def _socket_path(state_dir: Path, name: str) -> Path:
    """Short, since a socket's path may have only about 100 bytes and a state's may be longer."""
    owner = hashlib.sha256(os.fsencode(state_dir.absolute())).hexdigest()[:12]
    directory = Path(tempfile.gettempdir()) / f"headrace-{owner}"
    path = directory / f"{name}.kv"
    if len(os.fsencode(path)) > MAX_SOCKET_PATH_BYTES:
        path = directory / f"{hashlib.sha256(name.encode()).hexdigest()[:16]}.kv"
    return path
