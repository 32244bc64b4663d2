"""The real worker and beat as processes of their own, over the test's servers."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from django.db import connection

from routing.contracts.process import ProcessStatus, decode_process_status
from routing.store import keys
from tests.stack import ROOT

WORKER = ("worker", "--pool", "threads", "--concurrency", "4", "--loglevel", "WARNING")


def database_url() -> str:
    """The test database, as a process of its own reads it."""
    base, _, _ = os.environ["DATABASE_URL"].rpartition("/")
    return f"{base}/{connection.settings_dict['NAME']}"


@contextmanager
def celery(
    log: Path,
    *words: str,
    command: tuple[str, ...] = ("-m", "celery", "-A", "console.project.celery"),
) -> Iterator[subprocess.Popen[bytes]]:
    """`celery <words>` of this tree against the test's servers; stopped at the end."""
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, *command, *words],
            cwd=ROOT,
            env={
                **os.environ,
                "DATABASE_URL": database_url(),
                "HEADRACE_DB_POOL_MAX": "6",
                "CELERY_SKIP_CHECKS": "1",  # as the supervisor starts it
            },
            stdout=out,
            stderr=out,
        )
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(5)


def alive(store, name: str) -> list[ProcessStatus]:
    statuses = [decode_process_status(raw) for raw in store.hgetall(keys.PROCESSES).values()]
    return [status for status in statuses if status.name == name]
