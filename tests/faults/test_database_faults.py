"""The database put back to an earlier copy while gateways, store and ledger go on.

What the store's stream and the journals still hold is booked again; what is missing is named; the
live counters follow the ledger; no snapshot number gets a second meaning.
"""

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.breaking import down, wait_for
from tests.conftest import Stack
from tests.faults.conftest import Broken
from tests.soak_run import all_run, make_callers, until_all_run
from tests.soaking import OK, Traffic, booked_ids, differences


@contextmanager
def database_stopped(stack: Stack) -> Iterator[Path]:
    """Its data directory, while no server runs on it."""
    with down("postgres", stack):
        data = next(path.parent for path in stack.state.rglob("PG_VERSION") if _is_top(path))
        wait_for(lambda: not _backends(data), "end of every backend", 20)
        yield data


def _is_top(version: Path) -> bool:
    return (version.parent / "postgresql.conf").exists()


def _backends(data: Path) -> list[str]:
    needle = os.fsencode(data)
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if needle in (entry / "cmdline").read_bytes():
                    found.append(entry.name)
            except OSError:
                continue
    return found


def copy_of(data: Path, kept: Path) -> None:
    owner = data.stat()
    # A server makes that file anew; one that starts, before it is killed again, may remove it.
    shutil.copytree(data, kept, symlinks=True, ignore=shutil.ignore_patterns("pg_internal.init"))
    for path in (kept, *kept.rglob("*")):
        os.chown(path, owner.st_uid, owner.st_gid, follow_symlinks=False)
    (kept / "postmaster.pid").unlink(missing_ok=True)


def newest_snapshot(stack: Stack) -> int:
    with psycopg.connect(stack.settings["DATABASE_URL"]) as db:
        row = db.execute("SELECT max(number) FROM routing_snapshotrow").fetchone()
    return int(row[0]) if row else 0


def condition(stack: Stack, part: str, word: str) -> dict[str, Any] | None:
    found = stack.status()["conditions"]
    return next((it for it in found if it["part"] == part and it["word"] == word), None)


@pytest.mark.timeout(900)
def test_restored_database_is_named_refilled_and_followed(broken: Broken, tmp_path: Path) -> None:
    stack, kept = broken.stack, broken.stack.state / "kept-database"
    until_all_run(stack)
    with database_stopped(stack) as data:
        copy_of(data, kept)
    until_all_run(stack)
    with Traffic(stack.gateway_url, broken.callers, before=stack) as lost:
        lost.until_served(answers=12)
        lost.stop()
    wait_for(lambda: not differences(stack, lost), "books closed before the restore", 90)
    make_callers(stack, suffix="-late")  # tenants, keys and snapshots that the copy lacks
    before = newest_snapshot(stack)
    with Traffic(stack.gateway_url, broken.callers, before=stack) as traffic:
        traffic.until_served()
        with database_stopped(stack) as data:
            aside = data.with_name("pg.aside")
            data.rename(aside)
            kept.rename(data)
            shutil.rmtree(aside)
        restored_s = time.monotonic()
        wait_for(lambda: all_run(stack.status()), "everything back", 120)
        wait_for(lambda: condition(stack, "ledger", "went back"), "the ledger's word", 60)
        wait_for(lambda: newest_snapshot(stack) > before, "a snapshot number beyond all", 90)
        traffic.until_served()
        traffic.stop()
    assert set(traffic.kinds()) <= {"ok", "hung up", "refused 429", "refused 503"}
    assert traffic.count(restored_s, OK) > 0
    gone = {one.request_id for one in lost.seen if one.status == 200} - booked_ids(stack)
    assert gone, "the copy is older than these answers"
    told = condition(stack, "ledger", "went back")
    assert told is not None and told["tone"] == "bad" and "policies" in told["text"]
    # All that was answered since is booked, and counters, windows, rollups and rows agree.
    wait_for(lambda: not _wrong_since(stack, traffic), "books closed", 90)
    numbers = {row["snapshot_number"] for row in stack.status()["gateways"]}
    assert numbers == {newest_snapshot(stack)}


def _wrong_since(stack: Stack, traffic: Traffic) -> list[str]:
    """Differences, except answers from before the copy was put back."""
    return [line for line in differences(stack, traffic) if "answers without a row" not in line]
