"""Checks of the source that stand before the tests: style, types, import direction, migrations."""

import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

from console.supervisor.bootstrap import PACKAGES, ROOT

AT_ONCE = 2  # the type checker takes a core for itself, the rest share the other


@dataclass(frozen=True, slots=True)
class Guard:
    """One check; it passes when the command exits with 0."""

    name: str
    argv: tuple[str, ...]


def all_guards() -> tuple[Guard, ...]:
    """Every guard, the slowest first."""
    python = sys.executable
    beside = Path(python).parent
    manage = (python, str(ROOT / "manage.py"))
    return (
        Guard("types (mypy)", (python, "-m", "mypy", "manage.py", *PACKAGES)),
        Guard("settings and models (check)", (*manage, "check", "--fail-level", "WARNING")),
        Guard(
            "migrations (makemigrations --check)",
            (*manage, "makemigrations", "--check", "--dry-run"),
        ),
        Guard("imports (import-linter)", (str(beside / "lint-imports"), "--no-cache")),
        Guard("style (ruff check)", (python, "-m", "ruff", "check", ".")),
        Guard("format (ruff format)", (python, "-m", "ruff", "format", "--check", ".")),
        Guard("templates (djlint)", (python, "-m", "djlint", "templates", "--lint", "--quiet")),
    )


def run(environment: Mapping[str, str], say: Callable[[str], None]) -> int:
    """Run all of them, a line for each and the output of what fails; exit code of a failed one."""
    code = 0
    with ThreadPoolExecutor(max_workers=AT_ONCE) as pool:
        started = {pool.submit(_run_one, guard, environment): guard for guard in all_guards()}
        for done in as_completed(started):
            returncode, output, took_s = done.result()
            verdict = "ok" if returncode == 0 else f"FAILED ({returncode})"
            say(f"guard: {started[done].name}: {verdict} in {took_s:.1f} s")
            if returncode != 0:
                say(output.rstrip())
                code = code or abs(returncode)
    return code


def _run_one(guard: Guard, environment: Mapping[str, str]) -> tuple[int, str, float]:
    started_s = time.monotonic()
    done = subprocess.run(  # noqa: S603 - the list above
        guard.argv,
        cwd=ROOT,
        env=dict(environment),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout, time.monotonic() - started_s
