"""`manage.py test`: guards, then the whole suite on real servers; the same command that CI runs."""

import os
import sys
import time
from argparse import ArgumentParser
from pathlib import Path

from django.core.management.base import BaseCommand

from console.errors import DomainError
from console.supervisor import guards, tools
from console.supervisor.bootstrap import ROOT
from console.supervisor.servers import private_servers

# Tests below these need neither browser nor Prometheus nor nginx.
PLAIN = (ROOT / "tests" / "unit", ROOT / "tests" / "property")


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
        started_s = time.monotonic()
        with private_servers() as (supervisor, _, settings):
            self._say(f"servers ready in {time.monotonic() - started_s:.1f} s")
            environment = {**os.environ, **found, **settings}
            if chosen or "-k" in passed:
                self._say("guards: not run for a selection of tests")
                code = 0
            else:
                code = guards.run(environment, self._say)
            marks = [] if is_soak or "-m" in passed else ["-m", "not soak"]
            pytest = [sys.executable, "-m", "pytest", *marks, *passed]
            tested = supervisor.run_in_foreground(pytest, environment)
            return code or tested

    def _say(self, line: str) -> None:
        self.stdout.write(line)
        self.stdout.flush()


def chosen_paths(passed: list[str]) -> list[Path]:
    """Files and directories among pytest's arguments."""
    words = [word.partition("::")[0] for word in passed if not word.startswith("-")]
    return [Path(word).resolve() for word in words if Path(word).exists()]


def _is_below(path: Path, directories: tuple[Path, ...]) -> bool:
    return any(path.is_relative_to(directory) for directory in directories)
