"""`manage.py test`: guards and the whole suite on real servers; the same command that CI runs.

The suite runs in two lanes at once, each on servers of its own: most cases and faults wait for
real time limits, while the rest computes. A lane is this same command over its directories; what
the second printed follows the first one's output.
"""

import os
import subprocess
import sys
import tempfile
import time
from argparse import ArgumentParser
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import IO

from django.core.management.base import BaseCommand

from console.errors import DomainError
from console.supervisor import guards, tools
from console.supervisor.bootstrap import ROOT
from console.supervisor.servers import private_servers

# Tests below these need neither browser nor Prometheus nor nginx.
TESTS = ROOT / "tests"
PLAIN = (TESTS / "unit", TESTS / "property")
SECOND_LANE = ("cases", "faults")
STOP_WAIT_S = 30.0


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
        marks = [] if is_soak or "-m" in passed else ["-m", "not soak"]
        if not chosen and "-k" not in passed:
            return self._lanes([*marks, *passed], {**os.environ, **found})
        if not with_guards:
            self._say("guards: not run for a selection of tests")
        return self._pytest([*marks, *passed], found, with_guards=with_guards)

    def _lanes(self, words: list[str], environment: Mapping[str, str]) -> int:
        """Both lanes at once, each a process of its own; the exit code of the first failure."""
        with tempfile.TemporaryFile() as log:
            second = lane([*words, *paths_of(SECOND_LANE)], environment, output=log)
            first = lane(["--guards", *words, *paths_of(first_lane())], environment)
            try:
                codes = [first.wait(), second.wait()]
            finally:
                for process in (first, second):
                    if process.poll() is None:
                        process.terminate()
                        process.wait(STOP_WAIT_S)
                log.seek(0)
                self._say(log.read().decode(errors="replace").rstrip())
        return next((code for code in codes if code), 0)

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


def lane(
    words: list[str], environment: Mapping[str, str], output: IO[bytes] | None = None
) -> "subprocess.Popen[bytes]":
    """This command over some directories, on this terminal or with its words put aside."""
    return subprocess.Popen(  # noqa: S603 - our own command
        [sys.executable, str(ROOT / "manage.py"), "test", *words],
        env=dict(environment),
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
    )


def first_lane() -> list[str]:
    """Every directory of tests that the second lane leaves."""
    names = {path.relative_to(TESTS).parts[0] for path in TESTS.rglob("test_*.py")}
    return sorted(names - set(SECOND_LANE))


def paths_of(names: Iterable[str]) -> list[str]:
    """The directories' paths below the root."""
    return [f"tests/{name}" for name in names]


def chosen_paths(passed: list[str]) -> list[Path]:
    """Files and directories among pytest's arguments."""
    words = [word.partition("::")[0] for word in passed if not word.startswith("-")]
    return [Path(word).resolve() for word in words if Path(word).exists()]


def _is_below(path: Path, directories: tuple[Path, ...]) -> bool:
    return any(path.is_relative_to(directory) for directory in directories)
