"""A schema that is half made, newer than the code or at odds with its record: one line, no service.

One installation without demo serves all; its database is broken and mended through `up --servers`.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
import pytest
from django.db.migrations.loader import MigrationLoader

from tests.conftest import ROOT, Stack, clean_environment, processes_of
from tests.supervising import own_stack, start_up, until, up_refused

FUTURE = "9999_from_the_future"
KILL_AFTER_LINES = (1, 12)  # "Applying ..." lines of the log when `prepare` is killed

pytestmark = pytest.mark.timeout(600)  # a shared stack starts several times, on any machine


def applying(stack: Stack) -> int:
    log = stack.state / "logs" / "prepare.log"
    return log.read_text().count("Applying ") if log.exists() else 0


def prepare_pid(stack: Stack) -> int | None:
    found = processes_of(stack.state).items()
    return next((pid for pid, words in found if "console.supervisor.prepare" in words), None)


@pytest.fixture(scope="module")
def installed() -> Iterator[Stack]:
    """Made by an `up` whose `prepare` was killed at several points before it came through."""
    with own_stack() as stack:
        total = len(MigrationLoader(None).graph.nodes)
        for lines in KILL_AFTER_LINES:
            before = applying(stack)
            # A kill may come late on a busy machine: then half of what is left is the next point.
            wanted = before + min(lines, max(1, (total - before) // 2))
            running = start_up(stack)
            until(lambda n=wanted: applying(stack) >= n, f"{wanted} lines of migrate")
            pid = prepare_pid(stack)
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
            said = running.communicate(timeout=60)[1]
            assert running.returncode == 1, said
            assert said.startswith("CommandError: prepare failed: killed by SIGKILL; log: ")
            assert said.count("\n") == 1
            assert processes_of(stack.state) == {}
        stack.up()
        assert stack.status()["is_ready"]
        stack.down()
        yield stack


@contextmanager
def database(stack: Stack) -> Iterator[psycopg.Connection]:
    """The servers alone, as for a repair."""
    stack.manage("up", "--detach", "--servers", *stack.port_words(), check=True)
    assert sorted(path.stem for path in (stack.state / "pids").iterdir()) == ["postgres", "valkey"]
    try:
        with psycopg.connect(stack.settings["DATABASE_URL"], autocommit=True) as connection:
            yield connection
    finally:
        stack.manage("down", check=True)


def forget(connection: psycopg.Connection, app: str) -> str:
    """Strike the newest migration of an app from the record; its name."""
    row = connection.execute(
        "DELETE FROM django_migrations WHERE id = (SELECT max(id) FROM django_migrations"
        " WHERE app = %s) RETURNING name",
        [app],
    ).fetchone()
    assert row is not None
    return str(row[0])


def remember(connection: psycopg.Connection, app: str, name: str) -> None:
    connection.execute(
        "INSERT INTO django_migrations (app, name, applied) VALUES (%s, %s, now())", [app, name]
    )


def test_killed_preparation_is_completed_by_the_next_up(installed: Stack) -> None:
    with database(installed) as connection:
        count = connection.execute("SELECT count(*) FROM console_user").fetchone()
    assert count == (1,)


def test_schema_newer_than_the_code_is_named_and_nothing_starts(installed: Stack) -> None:
    with database(installed) as connection:
        remember(connection, "console", FUTURE)
    line = up_refused(installed)
    assert f"the database has console.{FUTURE}, which this code does not know" in line
    assert "start the newer version again" in line
    assert processes_of(installed.state) == {}
    with database(installed) as connection:
        connection.execute("DELETE FROM django_migrations WHERE name = %s", [FUTURE])


def test_tables_at_odds_with_their_record_are_one_line_with_a_next_step(installed: Stack) -> None:
    with database(installed) as connection:
        name = forget(connection, "telemetry")
    line = up_refused(installed)
    assert f"migration telemetry.{name} fails: " in line
    assert "already exists" in line
    assert "docs/operate.md, Schema" in line
    assert processes_of(installed.state) == {}
    with database(installed):  # the step that the document names
        installed.manage("migrate", "telemetry", name, "--fake", check=True)
    installed.up()
    assert installed.status()["is_ready"]
    installed.down()


def test_no_service_starts_on_a_schema_older_than_its_code(installed: Stack) -> None:
    services = {
        "console": ("-m", "uvicorn", "console.project.server:application", "--port", "0"),
        "worker": ("-m", "celery", "-A", "console.project.celery", "worker", "--pool", "threads"),
        "beat": ("-m", "celery", "-A", "console.project.celery", "beat"),
        "ledger": (str(ROOT / "manage.py"), "ledger"),
    }
    with database(installed) as connection:
        name = forget(connection, "telemetry")
        environment = {
            **clean_environment(),
            **installed.settings,
            "HEADRACE_STATE": str(installed.state),
        }
        for service, words in services.items():
            done = subprocess.run(
                [sys.executable, *words],
                cwd=ROOT,
                env=environment,
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
            )
            assert done.returncode not in (0, None), service
            last = done.stderr.strip().splitlines()[-1]
            assert f"the database lacks telemetry.{name} of this code" in last, (service, last)
        remember(connection, "telemetry", name)
