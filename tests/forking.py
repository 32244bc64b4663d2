"""Processes of the product, forked from one that has imported their module once.

A gateway's imports cost five times what its start does, and hundreds of tests start one. Each still
gets a process of its own: own memory, environment, files and process id. Tests of the start itself,
and the whole stacks, run the command instead.
"""

import atexit
import contextlib
import fcntl
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import IO, Any, NoReturn

ROOT = Path(__file__).resolve().parent.parent
REQUEST_BYTES = 262_144
STATUS_BYTES = 4
# What each imports before it begins; to import a `__main__` without a guard would begin it.
IMPORTS = {
    "routing.gateway": "routing.gateway.__main__",
    "capacity.engine": "capacity.engine.__main__",
    "telemetry.collector": "telemetry.collector.process",
}
STDOUT, STDERR = 1, 2
OUTPUTS = 2  # before where its exit status goes
MAX_FILES = 16
ABOVE = 512  # no file of ours has such a number


class Forked:
    """A forked process, used as `subprocess.Popen` is."""

    def __init__(self, module: str, words: list[str], pid: int, ended: int) -> None:
        self.args = [sys.executable, "-m", module, *words]
        self.pid = pid
        self.returncode: int | None = None
        self._ended = ended

    def poll(self) -> int | None:
        """Its exit code, or None while it runs."""
        return self._read(0.0)

    def wait(self, timeout: float | None = None) -> int:
        """Its exit code once it has ended."""
        code = self._read(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
        return code

    def send_signal(self, number: int) -> None:
        """Unless it has ended."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        """SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def _read(self, timeout_s: float | None) -> int | None:
        if self.returncode is None and select.select([self._ended], [], [], timeout_s)[0]:
            status = os.read(self._ended, STATUS_BYTES)
            os.close(self._ended)
            assert status, "the process that forks is gone"
            self.returncode = os.waitstatus_to_exitcode(int.from_bytes(status, "big"))
        return self.returncode


class Forker:
    """The process that has imported a module and forks whoever runs it."""

    def __init__(self, module: str) -> None:
        self._module = module
        self._one_at_a_time = threading.Lock()
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = f"from tests import forking; forking.serve({theirs.fileno()}, {module!r})"
        # The end of our socket ends it, whatever becomes of us.
        self._process = subprocess.Popen(
            [sys.executable, "-c", command],
            cwd=ROOT,
            env={"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)},
            stdin=subprocess.DEVNULL,
            pass_fds=(theirs.fileno(),),
        )
        theirs.close()

    def start(
        self,
        words: Iterable[str] = (),
        *,
        env: Mapping[str, str],
        out: IO[bytes] | None = None,
        pass_fds: tuple[int, ...] = (),
    ) -> Forked:
        """`python -m <module> <words>` with that environment and output, in the root.

        `pass_fds` keep their numbers.
        """
        words = list(words)
        ended, status = os.pipe()
        try:
            files = [out or sys.__stdout__, out or sys.__stderr__]
            descriptors = [*(file.fileno() for file in files), status, *pass_fds]
            request = json.dumps({"words": words, "env": dict(env), "fds": pass_fds}).encode()
            assert len(request) < REQUEST_BYTES
            with self._one_at_a_time:
                socket.send_fds(self._socket, [request], descriptors)
                pid = int.from_bytes(self._socket.recv(STATUS_BYTES), "big")
        finally:
            os.close(status)
        assert pid, f"no process was forked for {self._module}"
        return Forked(self._module, words, pid, ended)

    def close(self) -> None:
        """End it. What it forked goes on."""
        self._socket.close()
        self._process.wait(10)


_forkers: dict[str, Forker] = {}


def forker(module: str) -> Forker:
    """The one of this test run."""
    if module not in _forkers:
        _forkers[module] = Forker(module)
    return _forkers[module]


def end_all() -> None:
    """For a test that ends every child of its process, or counts them; the next use begins anew."""
    while _forkers:
        _, one = _forkers.popitem()
        one.close()


atexit.register(end_all)


def serve(descriptor: int, module: str) -> None:
    """Import `module`, then fork for each request. Returns in no process: a child runs `module`."""
    importlib.import_module(IMPORTS[module])
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whose terminal it is ends us by our socket
    asked = socket.socket(fileno=descriptor)
    woken, wakes = os.pipe()
    for one in (woken, wakes):
        os.set_blocking(one, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wakes, warn_on_full_buffer=False)
    statuses: dict[int, int] = {}  # process id -> where its exit status goes
    gc.collect()
    gc.freeze()  # a collection in a child would copy every page
    while True:
        readable, _, _ = select.select([asked, woken], [], [])
        if woken in readable:
            os.read(woken, REQUEST_BYTES)
            _report(statuses)
        if asked not in readable:
            continue
        raw, files, _, _ = socket.recv_fds(asked, REQUEST_BYTES, MAX_FILES)
        if not raw:
            sys.exit()
        pid = os.fork()
        if not pid:
            asked.detach()  # closed with the rest: its number may then be another's
            _become(module, json.loads(raw), files)
        statuses[pid] = files.pop(OUTPUTS)
        for one in files:
            os.close(one)
        asked.send(pid.to_bytes(STATUS_BYTES, "big"))


def _become(module: str, request: dict[str, Any], files: list[int]) -> NoReturn:
    """Run the module as the interpreter would, then end."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # Away from the low numbers first: one that is asked for may be where another came to lie.
    high = [fcntl.fcntl(one, fcntl.F_DUPFD, ABOVE) for one in files]
    os.closerange(STDERR + 1, ABOVE)
    for one, number in zip(high, (STDOUT, STDERR, None, *request["fds"]), strict=True):
        if number is not None:
            os.dup2(one, number)
        os.close(one)
    os.environ.clear()
    os.environ.update(request["env"])
    sys.argv = [module, *request["words"]]
    sys.modules.pop(f"{module}.__main__", None)
    runpy.run_module(module, run_name="__main__", alter_sys=True)
    sys.exit()


def _report(statuses: dict[int, int]) -> None:
    """Tell the exit statuses of those that have ended."""
    while statuses:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if not pid:
            return
        told = statuses.pop(pid)
        with contextlib.suppress(BrokenPipeError):  # nobody waits for it any more
            os.write(told, status.to_bytes(STATUS_BYTES, "big"))
        os.close(told)
