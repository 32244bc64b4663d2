"""`manage.py test`: guards and the whole suite on real servers; the same command that CI runs.

The suite runs in two lanes at once, each on servers of its own: most cases and faults wait for
real time limits, while the rest computes. The second lane is this same command over its
directories; what it printed follows the first lane's output.
"""

import os
import subprocess
import sys
import tempfile
import time
from argparse import ArgumentParser
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
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
        parser.add_argument("--state", help="ignored: tests use a state of their own")
        options, passed = parser.parse_known_args(argv[2:])
        os.chdir(ROOT)
        try:
            sys.exit(self._run(passed, is_soak=options.soak))
        except DomainError as error:
            sys.exit(error.message)

    def _run(self, passed: list[str], *, is_soak: bool) -> int:
        chosen = chosen_paths(passed)
        is_plain = bool(chosen) and all(_is_below(path, PLAIN) for path in chosen)
        found = {} if is_plain else tools.ensure(self._say)
        marks = [] if is_soak or "-m" in passed else ["-m", "not soak"]
        if chosen or "-k" in passed:
            self._say("guards: not run for a selection of tests")
            return self._pytest([*marks, *passed], found, with_guards=False)
        with second_lane([*marks, *passed], {**os.environ, **found}) as other:
            code = self._pytest([*marks, *passed, *first_lane()], found, with_guards=True)
            other_code = other.process.wait()
            self._say(other.output())
        return code or other_code

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


@dataclass(frozen=True, slots=True)
class Lane:
    """The second lane: its process and the file that takes what it says."""

    process: subprocess.Popen[bytes]
    log: IO[bytes]

    def output(self) -> str:
        """All that it has said."""
        self.log.seek(0)
        return self.log.read().decode(errors="replace").rstrip()


@contextmanager
def second_lane(words: list[str], environment: Mapping[str, str]) -> Iterator[Lane]:
    """This command over the second lane's directories, in the background; stopped if we fail."""
    paths = [f"tests/{name}" for name in SECOND_LANE]
    command = [sys.executable, str(ROOT / "manage.py"), "test", *words, *paths]
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(  # noqa: S603 - our own command
            command, env=dict(environment), stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )
        try:
            yield Lane(process, log)
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait(STOP_WAIT_S)


def first_lane() -> list[str]:
    """Every directory of tests that the second lane leaves."""
    names = {path.relative_to(TESTS).parts[0] for path in TESTS.rglob("test_*.py")}
    return [f"tests/{name}" for name in sorted(names - set(SECOND_LANE))]


def chosen_paths(passed: list[str]) -> list[Path]:
    """Files and directories among pytest's arguments."""
    words = [word.partition("::")[0] for word in passed if not word.startswith("-")]
    return [Path(word).resolve() for word in words if Path(word).exists()]


def _is_below(path: Path, directories: tuple[Path, ...]) -> bool:
    return any(path.is_relative_to(directory) for directory in directories)
