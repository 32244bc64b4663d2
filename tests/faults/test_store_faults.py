"""The store of a running product killed, hung, emptied, full, or back with an older log.

Callers get an answer or a refusal within a second; limits hold; every answer is booked; what needs
the store (worker, beat, collector, ledger, console) comes back by itself.
"""

import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import httpx
import pytest
import redis

from routing.store import keys
from tests.breaking import down, killed, stopped, store_flushed, store_full, wait_for
from tests.conftest import Stack
from tests.faults.conftest import Broken
from tests.soak_run import until_all_run
from tests.soaking import OK, Traffic, settle_and_check

REFUSED_S = 1.0
REFILL_S = 180.0  # beat's next push, the broker's own retries, and a busy machine
MACHINE_S = 1.5  # what a busy test machine may add
KINDS = {"ok", "hung up", "refused 429", "refused 503"}


@contextmanager
def log_deleted(stack: Stack) -> Iterator[None]:
    """It comes back without any of its files."""
    with down("valkey", stack):
        yield
        for path in _files(stack).glob("appendonlydir/*"):
            path.unlink()


@contextmanager
def older_log(stack: Stack) -> Iterator[None]:
    """It comes back as it was some seconds ago, as from a copy of its disk."""
    files, kept = _files(stack), stack.state / "older-log"
    shutil.copytree(files / "appendonlydir", kept)
    time.sleep(4.0)  # what is answered now is in nobody's copy
    with down("valkey", stack):
        yield
        owner = files.stat()
        shutil.rmtree(files / "appendonlydir")
        shutil.move(kept, files / "appendonlydir")
        for path in [files / "appendonlydir", *(files / "appendonlydir").iterdir()]:
            os.chown(path, owner.st_uid, owner.st_gid)


@contextmanager
def log_damaged(stack: Stack) -> Iterator[None]:
    """A piece is missing in the middle of its log, as after a disk that was full for a moment."""
    files = _files(stack)
    with down("valkey", stack):
        yield
        (log,) = files.glob("appendonlydir/*.incr.aof")
        content = log.read_bytes()
        middle = len(content) // 2
        with log.open("r+b") as file:  # the same file, so the same owner
            file.seek(middle)
            file.write(content[middle + 101 :])
            file.truncate()
    wait_for((files / "appendonlydir.damaged").exists, "the log is put aside")


def _files(stack: Stack) -> Path:
    return next(path.parent for path in stack.state.rglob("appendonlydir"))


FAULTS: dict[str, tuple[Callable[[Stack], AbstractContextManager[None]], float]] = {
    "killed": (lambda stack: killed("valkey", stack), 1.0),
    "accepts and never answers": (lambda stack: stopped("valkey", stack), 5.0),
    "down": (lambda stack: down("valkey", stack), 6.0),
    "flushed": (store_flushed, 1.0),
    "full": (store_full, 5.0),
    "back with an older log": (older_log, 1.0),
    "back without its log": (log_deleted, 1.0),
    "back with a damaged log": (log_damaged, 1.0),
}


@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", FAULTS)
def test_store_fails_and_nothing_is_lost(broken: Broken, name: str) -> None:
    fault, lasts_s = FAULTS[name]
    stack = broken.stack
    until_all_run(stack)
    with Traffic(stack.gateway_url, broken.callers, before=stack) as traffic:
        traffic.until_served()
        began_s = time.monotonic()
        with fault(stack):
            time.sleep(lasts_s)
        mended_s = time.monotonic()
        traffic.until_served()
        served_s = time.monotonic() - mended_s
        traffic.stop()
    kinds = traffic.kinds(began_s)
    assert set(kinds) <= KINDS, kinds
    assert traffic.count(began_s, OK) > 0
    refused_s = traffic.slowest_s("refused 503", began_s)
    assert refused_s < REFUSED_S + MACHINE_S
    books = settle_and_check(stack, traffic, quiet_s=120)
    print(f"\nstore {name}: {dict(kinds)}, refused in {refused_s:.2f} s, {served_s=:.1f}, {books}")


@pytest.mark.timeout(900)
def test_emptied_store_is_filled_by_what_runs(broken: Broken) -> None:
    """Broker queues, snapshot, endpoint states and heartbeats went with it; nobody restarts."""
    stack = broken.stack
    until_all_run(stack)
    restarts = {row["name"]: row["restarts"] for row in stack.status()["processes"]}
    with redis.Redis.from_url(stack.settings["REDIS_URL"]) as store:
        # A fault before this one may have emptied the store as well: begin with a full one.
        offered = lambda: int(store.get(keys.SNAPSHOT_NUMBER) or 0)  # noqa: E731
        number = wait_for(offered, "snapshot before the fault", REFILL_S)
        store.flushall()
        # Beat queues the push, the worker takes it: the broker works, bindings included.
        wait_for(lambda: offered() >= number, "snapshot", REFILL_S)
        wait_for(lambda: store.hlen(keys.GATEWAYS) == 2, "gateways report")
        wait_for(lambda: store.scard(keys.POOLS_WITH_STATE) == 3, "endpoint states")
    until_all_run(stack)
    assert httpx.get(f"{stack.console_url}/readyz", timeout=5).status_code == 200
    assert restarts == {row["name"]: row["restarts"] for row in stack.status()["processes"]}
