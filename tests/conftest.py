"""Real servers for every test that asks, and a whole running Headrace for those that need one.

`python3 manage.py test` starts the servers and sets the environment. pytest-django gives each
database test its own transaction on `test_headrace`; `store` is emptied before each test.
"""

import functools
import json
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx._transports.default
import httpx2._transports.default
import hypothesis
import pytest
import redis
from django.contrib.auth.hashers import Argon2PasswordHasher
from whitenoise.middleware import WhiteNoiseMiddleware

ROOT = Path(__file__).resolve().parent.parent
# Of the environment that tests run in, a product of its own must see none of these.
OWN_VARIABLES = ("DATABASE_URL", "REDIS_URL", "DJANGO_SETTINGS_MODULE", "VIRTUAL_ENV")

OF_THE_SCHEMA = ("django_migrations", "django_content_type", "auth_permission")
GROWN_BYTES = 1 << 20
EDGE_S = 10.0

# A client that polls writes a line for each call: a failure's report would hold nothing else.
logging.getLogger("httpx").setLevel(logging.WARNING)
# Every new client reads the world's certificates: 22 ms of CPU, more than a call to a gateway. No
# test leaves this machine, so they are read once.
for client in (httpx, httpx2):
    module = client._transports.default
    module.create_ssl_context = functools.cache(module.create_ssl_context)
# Every test client's first call reads the folder of static files: a quarter of what a page costs.
made = WhiteNoiseMiddleware.add_files_from_finders
static_files: dict[str, Any] = {}


def add_files_once(middleware: WhiteNoiseMiddleware) -> None:
    if not static_files:
        made(middleware)
        static_files.update(middleware.files)
    middleware.files.update(static_files)


WhiteNoiseMiddleware.add_files_from_finders = add_files_once

# An example may take as long as a busy machine lets it: no test asserts absolute speed.
hypothesis.settings.register_profile("headrace", deadline=None)
hypothesis.settings.load_profile("headrace")

# A password's hash costs a tenth of a second so that nobody guesses many: no test needs that.
Argon2PasswordHasher.time_cost = 1
Argon2PasswordHasher.memory_cost = 1024  # KiB
Argon2PasswordHasher.parallelism = 1


# Whole stacks that live for a session, in the order in which tests that use them run: last, so
# that nothing else shares the machine with one that only waits.
WHOLE_STACKS = ("broken", "stack")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests on whole stacks run after all others, together."""

    def rank(item: pytest.Item) -> int:
        names = getattr(item, "fixturenames", ())
        return next((n + 1 for n, name in enumerate(WHOLE_STACKS) if name in names), 0)

    items.sort(key=rank)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """No hour, and so no day, ends under a short test: those of such edges say what time it is."""
    left_s = 3600 - time.time() % 3600
    if left_s < EDGE_S:
        time.sleep(left_s)


@pytest.fixture
def store() -> Iterator[redis.Redis]:
    """The store, emptied. Refuses to empty one that a running installation uses."""
    url = os.environ.get("REDIS_URL")
    if not url:
        pytest.fail("REDIS_URL is not set: run the tests with `python3 manage.py test`")
    state = os.environ.get("HEADRACE_STATE")
    if state and (Path(state) / "processes.json").exists():
        pytest.fail(f"{state} belongs to a running Headrace: its store must not be emptied")
    client = redis.Redis.from_url(url)
    client.flushall()
    yield client
    client.close()


@pytest.fixture
def state_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty state directory that this test's processes and code see."""
    path = tmp_path / "state"
    path.mkdir()
    monkeypatch.setenv("HEADRACE_STATE", str(path))
    return path


def empty_tables() -> None:
    """No row is left but those that came with the schema.

    Django's flush truncates every table and makes content types and permissions anew: 0.2 s of CPU
    a test against 0.01. Only a table that has grown is truncated: its pages would stay otherwise.
    """
    from django.db import connection, transaction

    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(
            "SELECT oid::regclass::text, pg_table_size(oid)"
            " + (SELECT coalesce(sum(pg_table_size(relid)), 0) FROM pg_partition_tree(oid))"
            " FROM pg_class"
            " WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'p')"
            " AND NOT relispartition AND relname <> ALL(%s)",
            [list(OF_THE_SCHEMA)],
        )
        sizes = dict(cursor.fetchall())
        # As a TRUNCATE would: whoever still writes is waited for.
        cursor.execute(f"LOCK TABLE {', '.join(sizes)} IN SHARE ROW EXCLUSIVE MODE")
        # No foreign key is followed, no append-only trigger refuses.
        cursor.execute("SET LOCAL session_replication_role = replica")
        cursor.execute("; ".join(f"DELETE FROM {table}" for table in sizes))
        if grown := [table for table, size_bytes in sizes.items() if size_bytes > GROWN_BYTES]:
            cursor.execute(f"TRUNCATE {', '.join(grown)} CASCADE")


@pytest.fixture(scope="session", autouse=True)
def tables_are_emptied_quickly() -> Iterator[None]:
    """After each test that commits."""
    from django.test import TransactionTestCase

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TransactionTestCase, "_fixture_teardown", lambda _: empty_tables())
        yield


@pytest.fixture(scope="session")
def chromium() -> str:
    """Path of the browser. Missing is an error, never a skip."""
    found = os.environ.get("HEADRACE_CHROMIUM") or shutil.which("chromium")
    if not found:
        pytest.fail("no Chromium: `python3 manage.py test` brings it, or set HEADRACE_CHROMIUM")
    return found


def clean_environment(**extra: str) -> dict[str, str]:
    """The environment of a newcomer's shell: nothing of the test run leaks in."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if name not in OWN_VARIABLES and not name.startswith("HEADRACE_")
    }
    return {**kept, **extra}


def free_ports(count: int) -> list[int]:
    """Ports nobody listens on now."""
    from console.supervisor import ports

    found: list[int] = []
    while len(found) < count:
        found.append(ports.choose(avoid=found))
    return found


def processes_of(state: Path) -> dict[int, str]:
    """Every process that works for a state: in its arguments, environment or working directory.

    Servers overwrite the first two with a title.
    """
    needle = os.fsencode(state)
    found = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            arguments = (entry / "cmdline").read_bytes()
            told = arguments + (entry / "environ").read_bytes()
            told += os.fsencode(os.readlink(entry / "cwd"))
        except OSError:
            continue
        if arguments and needle in told:
            found[int(entry.name)] = arguments.replace(b"\0", b" ").decode(errors="replace")
    return found


@dataclass
class Stack:
    """A Headrace of its own, started and stopped through `manage.py` as a person would."""

    state: Path
    root: Path = ROOT
    python: str = sys.executable
    console_port: int = 0
    gateway_port: int = 0
    environment: dict[str, str] = field(default_factory=clean_environment)
    started: str = ""

    def manage(
        self, *words: str, timeout_s: float = 180, check: bool = False
    ) -> subprocess.CompletedProcess[str]:
        """Run a command of this state to its end."""
        done = subprocess.run(
            [self.python, str(self.root / "manage.py"), *words, "--state", str(self.state)],
            cwd=self.root,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
        if check and done.returncode != 0:
            pytest.fail(
                f"manage.py {' '.join(words)} ended with {done.returncode}:\n"
                f"{done.stdout}{done.stderr}{self.log_tails()}"
            )
        return done

    def up(self, *words: str, timeout_s: float = 300) -> None:
        """Start on free ports and wait until it is ready."""
        self.started = self.manage(
            "up", "--detach", *self.port_words(), *words, timeout_s=timeout_s, check=True
        ).stdout

    def port_words(self) -> tuple[str, ...]:
        """Options of `up` for ports of its own, chosen once."""
        if not self.console_port:
            self.console_port, self.gateway_port = free_ports(2)
        return ("--console-port", str(self.console_port), "--gateway-port", str(self.gateway_port))

    def down(self) -> None:
        """Stop, then check that nothing of it is left."""
        self.manage("down")
        left = processes_of(self.state)
        assert not left, f"left running after down: {left}"

    def status(self) -> dict[str, Any]:
        """What `status --json` prints, without the half second of CPU that a command's start is.

        Tests wait for it. Those of the command itself run that.
        """
        from console.supervisor.answer import collect
        from console.supervisor.state import State

        return json.loads(json.dumps(collect(State(self.state))))

    def process(self, name: str) -> dict[str, Any]:
        """One row of the status."""
        return next(row for row in self.status()["processes"] if row["name"] == name)

    @property
    def credentials(self) -> dict[str, Any]:
        """The operator's password and the demo keys."""
        return json.loads((self.state / "credentials.json").read_text())

    @property
    def settings(self) -> dict[str, str]:
        """What its processes run with: DATABASE_URL, REDIS_URL, secrets."""
        return json.loads((self.state / "environment.json").read_text())

    @property
    def console_url(self) -> str:
        """Base URL of the console."""
        return f"http://127.0.0.1:{self.console_port}"

    @property
    def gateway_url(self) -> str:
        """Base URL of the gateway, without /v1."""
        return f"http://127.0.0.1:{self.gateway_port}"

    def log_tails(self, lines: int = 8) -> str:
        """The end of each log, for a failure's message."""
        parts = []
        for path in sorted((self.state / "logs").glob("*.log")):
            tail = path.read_text(errors="replace").splitlines()[-lines:]
            parts.append(f"\n--- {path.name}\n" + "\n".join(tail))
        return "".join(parts)


@pytest.fixture
def bare_stack() -> Iterator[Stack]:
    """A stack that the test starts itself; whatever it leaves is stopped."""
    directory = Path(tempfile.mkdtemp(prefix="headrace-stack-"))
    directory.chmod(0o711)
    stack = Stack(directory / "state")
    yield stack
    stack.manage("down")
    left = processes_of(stack.state)
    shutil.rmtree(directory, ignore_errors=True)
    assert not left, f"left running: {left}"


@pytest.fixture(scope="session")
def stack() -> Iterator[Stack]:
    """One running demo for the whole session; tests must leave it as they found it."""
    directory = Path(tempfile.mkdtemp(prefix="headrace-stack-"))
    directory.chmod(0o711)
    running = Stack(directory / "state")
    try:
        running.up("--demo")
        yield running
    finally:
        running.manage("down")
        left = processes_of(running.state)
        shutil.rmtree(directory, ignore_errors=True)
        assert not left, f"left running after down: {left}"
