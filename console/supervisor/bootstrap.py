"""Make the environment that Headrace runs in, then run inside it. Standard library only.

On a bare machine `ensure` creates `.venv` beside `manage.py` from the hash-locked requirements and
replaces the process by the same command inside it. A record in `.venv` names the lock files it was
made from: it is made again only when they change, and an interrupted install is never trusted.
"""

import contextlib
import fcntl
import hashlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from console.supervisor import usage

ROOT = Path(__file__).resolve().parent.parent.parent
LOCK = "requirements.lock"
TEST_LOCK = "requirements-test.lock"  # holds everything in LOCK as well
PACKAGES = ("console", "tenants", "routing", "capacity", "telemetry")

HELP_WORDS = frozenset({"help", "--help", "-h"})  # alone, as is no word at all, they list commands
# Commands that need no state to begin with: they make it, or say themselves that there is none.
STATELESS = frozenset(
    {"up", "down", "status", "credentials", "engine", "test", "bench", "version", *HELP_WORDS}
)
REQUIRED = ("DATABASE_URL", "REDIS_URL", "HEADRACE_SECRET_KEY", "HEADRACE_KEY_PEPPER")

# pip's words for an index that cannot be reached, as against a package that it refuses.
UNREACHABLE = (
    "NewConnectionError",
    "Temporary failure in name resolution",
    "ProxyError",
    "Network is unreachable",
    "ConnectTimeoutError",
    "ReadTimeoutError",
)
PIP_RETRIES = "2"
INTERRUPTED = 130  # exit code of a shell command ended by Ctrl-C


def ensure(argv: list[str], root: Path = ROOT) -> None:
    """Return only inside the environment, with `--state` taken out of `argv` and its values loaded.

    Asked for help alone, says what there is and ends the process: nothing is installed for that.
    Replaces the process if it must run inside `.venv`. Ends it with one line if the environment
    cannot be made, or if the command needs a state and there is none.
    """
    state = _take_state(argv, root)
    command = argv[1] if len(argv) > 1 else "help"
    if command in HELP_WORDS and len(argv) <= 2:
        sys.stdout.write(usage.text())
        sys.exit(0)
    os.environ["HEADRACE_STATE"] = str(state)
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "console.project.settings")
    if os.environ.get("HEADRACE_NO_VENV") != "1":  # an image brings its packages itself
        venv = root / ".venv"
        was_made = make_environment(root, with_tests=command == "test")
        if was_made or Path(sys.prefix).resolve() != venv.resolve():
            python = str(venv / "bin" / "python")
            os.execv(python, [python, str(root / "manage.py"), *argv[1:]])  # noqa: S606
    if command not in STATELESS:
        _load_state(state)


def _take_state(argv: list[str], root: Path) -> Path:
    """Remove `--state DIR` from `argv`; the directory, absolute."""
    chosen = os.environ.get("HEADRACE_STATE", "") or str(root / ".headrace")
    index = 1
    while index < len(argv):
        if argv[index] == "--state":
            if index + 1 >= len(argv):
                sys.exit("--state needs a directory")
            chosen = argv[index + 1]
            del argv[index : index + 2]
        elif argv[index].startswith("--state="):
            chosen = argv.pop(index).partition("=")[2]
        else:
            index += 1
    return Path(os.path.abspath(os.path.expanduser(chosen)))


def _load_state(state: Path) -> None:
    """Take `environment.json` as defaults; the real environment wins."""
    path = state / "environment.json"
    try:
        values = json.loads(path.read_text())
    except FileNotFoundError:
        values = {}
    except (OSError, ValueError) as error:
        sys.exit(f"cannot read {path}: {error}")
    for name, value in values.items():
        os.environ.setdefault(name, value)
    if not all(os.environ.get(name) for name in REQUIRED):
        sys.exit(
            f"no Headrace state at {state}: run `python3 manage.py up` first, "
            "or name one with --state DIR"
        )


def make_environment(root: Path, *, with_tests: bool) -> bool:
    """Bring `.venv` up to the lock files; True if anything had to be done.

    Ends the process with one line when it cannot; a `.venv` that it created is then removed.
    """
    venv = root / ".venv"
    wanted = {name: _digest(root / name) for name in ((LOCK, TEST_LOCK) if with_tests else (LOCK,))}
    if _is_current(venv, wanted):
        return False
    try:
        with _only_one(venv) as (is_new, lock_handle):
            if _is_current(venv, wanted):  # another process made it while this one waited
                return True
            _install(root, venv, wanted, is_new=is_new, lock_handle=lock_handle)
    except FileExistsError:
        sys.exit(f"{venv} is not a directory: move it away")
    except PermissionError as error:
        sys.exit(f"cannot write to {error.filename or venv}: run as the owner of {root}")
    except OSError as error:
        sys.exit(f"cannot make {venv}: {error}")
    return True


def _digest(path: Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        sys.exit(f"cannot read {path}: {error.strerror}")


def _record(venv: Path) -> dict[str, str]:
    try:
        content = json.loads((venv / "headrace.json").read_text())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _python_identity(venv: Path) -> str:
    return os.path.realpath(venv / "bin" / "python")


def _is_current(venv: Path, wanted: dict[str, str]) -> bool:
    record = _record(venv)
    return (
        record.get("status") == "ready"
        and record.get("python") == _python_identity(venv)
        and os.access(venv / "bin" / "python", os.X_OK)
        and all(record.get(name) == digest for name, digest in wanted.items())
    )


@contextlib.contextmanager
def _only_one(venv: Path) -> Iterator[tuple[bool, int]]:
    """Hold `.venv` against a second installer; gives (this process created it, lock handle).

    The lock is on the directory itself: it survives `venv --clear`, and pip inherits it, so a pip
    that outlives a killed parent still keeps others out. Whoever waited for a directory that was
    removed meanwhile starts over with the new one.
    """
    while True:
        is_new = not venv.exists()
        venv.mkdir(exist_ok=True)
        handle = os.open(venv, os.O_RDONLY | os.O_DIRECTORY)
        try:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                _say("another process is installing: waiting for it ...")
                fcntl.flock(handle, fcntl.LOCK_EX)
            with contextlib.suppress(FileNotFoundError):
                if os.fstat(handle).st_ino == venv.stat().st_ino:
                    yield is_new, handle
                    return
        finally:
            os.close(handle)


def _install(
    root: Path, venv: Path, wanted: dict[str, str], *, is_new: bool, lock_handle: int
) -> None:
    """Create or refill `venv`; the record says `installing` until the last package is in."""
    started = time.monotonic()
    lock = root / (TEST_LOCK if TEST_LOCK in wanted else LOCK)
    record = _record(venv)
    try:
        if not os.access(venv, os.W_OK):
            raise PermissionError(13, "not writable", str(venv))  # noqa: TRY301
        if record.get("status") != "ready" or record.get("python") != _python_identity(venv):
            if is_new or record:
                _write_record(venv, {"status": "installing"})
            _create(venv, is_ours=bool(record))
        _write_record(venv, {"status": "installing"})
        count = sum(1 for line in lock.read_text().splitlines() if "==" in line)
        _say(f"installing {count} packages from {lock.name} into {venv} ...")
        _run_pip(venv, lock, lock_handle)
        kept = {name: record[name] for name in (LOCK, TEST_LOCK) if name in record}
        wanted = {**(kept if record.get("status") == "ready" else {}), **wanted}
        _write_record(venv, {"status": "ready", "python": _python_identity(venv), **wanted})
    except BaseException as error:
        if is_new:
            shutil.rmtree(venv, ignore_errors=True)
        if isinstance(error, KeyboardInterrupt):
            _say("install interrupted")
            sys.exit(INTERRUPTED)
        raise
    _say(f"installed in {time.monotonic() - started:.1f} s")


def _write_record(venv: Path, record: dict[str, str]) -> None:
    part = venv / "headrace.json.part"
    part.write_text(json.dumps(record))
    part.replace(venv / "headrace.json")


def _has_ensurepip() -> bool:
    return importlib.util.find_spec("ensurepip") is not None


def _create(venv: Path, *, is_ours: bool) -> None:
    """An empty environment. Clears a half-made one of ours, never somebody else's packages."""
    if importlib.util.find_spec("venv") is None:
        sys.exit(
            "this Python has no venv module: install it (Debian: apt-get install python3-venv)"
        )
    if not _has_ensurepip() and importlib.util.find_spec("pip") is None:
        sys.exit(
            "this Python has neither pip nor ensurepip: install one "
            "(Debian: apt-get install python3-venv)"
        )
    options = [
        *(["--clear"] if is_ours else []),
        *([] if _has_ensurepip() else ["--without-pip"]),
    ]
    base = getattr(sys, "_base_executable", sys.executable)  # not the `.venv` about to be replaced
    done = subprocess.run(  # noqa: S603
        [base, "-m", "venv", *options, str(venv)], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        sys.exit(f"cannot create {venv}: {_last_line(done.stdout + done.stderr)}")


def _run_pip(venv: Path, lock: Path, lock_handle: int) -> None:
    """Install exactly the lock file. Ends the process with one line if pip does not."""
    python = str(venv / "bin" / "python")
    has_own = subprocess.run(  # noqa: S603
        [python, "-m", "pip", "--version"], capture_output=True, check=False
    )
    # Debian splits ensurepip off: then the pip of the outer Python fills the environment.
    pip = [python, "-m", "pip"]
    if has_own.returncode != 0:
        pip = [getattr(sys, "_base_executable", sys.executable), "-m", "pip", "--python", python]
    command = [
        *pip,
        *("install", "--require-hashes", "--no-deps", "--disable-pip-version-check", "--no-input"),
        *("--progress-bar", "off", "--retries", PIP_RETRIES, "--requirement", str(lock)),
    ]
    done = subprocess.run(  # noqa: S603
        command, capture_output=True, text=True, check=False, pass_fds=(lock_handle,)
    )
    if done.returncode == 0:
        return
    output = done.stdout + done.stderr
    if any(word in output for word in UNREACHABLE):
        sys.exit(
            "cannot install: no package index can be reached (pip's own settings decide which)"
        )
    errors = [line for line in output.splitlines() if line.startswith("ERROR: ")]
    sys.exit(f"cannot install: {errors[-1][7:] if errors else _last_line(output)}")


def _last_line(text: str) -> str:
    return text.strip().rpartition("\n")[2] or "no reason given"


def _say(line: str) -> None:
    sys.stderr.write(line + "\n")  # standard output belongs to the command
    sys.stderr.flush()
