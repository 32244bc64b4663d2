"""SIGKILL of a gateway between any two steps of a reservation: charged once, nothing held."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from routing.contracts.usage import decode_usage
from routing.store import keys
from tests.accounting import (
    AMOUNTS,
    counter,
    entries,
    expire,
    gateway,
    new_id,
    open_bucket,
    redis_url,
    tenant,
    until,
)
from tests.stack import ROOT

pytestmark = pytest.mark.anyio

B = tenant().bucket
INPUT_NANOUSD = AMOUNTS.input_tokens * 1000
EXACT = 777


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, bool]]:
    return "asyncio", {"use_uvloop": True}


def kill_at(step: str, state: Path) -> str:
    """Run the child until it has killed itself; the id of its request."""
    request_id = new_id()
    done = subprocess.run(
        [sys.executable, "-m", "tests.reserving_child", step, redis_url(), str(state), request_id],
        cwd=ROOT,
        capture_output=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()
    return request_id


def charged_by_rows(store) -> int:
    """What the ledger would charge: the first row of an id, or the later exact one as `late`."""
    rows: dict[str, tuple[str, int]] = {}
    for _, fields in store.xrange(keys.bucket_usage(B)):
        event = decode_usage(fields[b"e"])
        kind = fields[b"t"].decode()
        known = rows.get(event.request_id)
        if known is None or (known[0] in "wr" and kind in "sv"):
            rows[event.request_id] = (kind, event.spend_nanousd)
    return sum(nanousd for _, nanousd in rows.values())


@pytest.mark.parametrize(
    ("step", "kinds_by_restart", "charge"),
    [
        ("opened", ["r"], INPUT_NANOUSD),
        ("ended", ["s"], EXACT),
        ("settled", ["s", "s"], EXACT),
    ],
)
async def test_restart_ends_what_the_killed_gateway_left(
    store, tmp_path: Path, step: str, kinds_by_restart: list[str], charge: int
):
    open_bucket(store, B)
    request_id = kill_at(step, tmp_path)
    async with gateway(redis_url(), tmp_path, "killed"):
        await until(lambda: len(entries(store, B)) == len(kinds_by_restart))
        assert [(i, t) for i, t, _ in entries(store, B)] == [
            (request_id, kind) for kind in kinds_by_restart
        ]
        charged = counter(store, B, ":w:", "usd")
        assert charged == charged_by_rows(store)
        # Opened only: estimated by its age, so a slow restart adds output, at most up to the hold.
        assert charge <= charged <= (AMOUNTS.spend_nanousd if step == "opened" else charge)
        assert counter(store, B, ":g:", "conc_h") == 0
        assert store.zcard(keys.bucket_leases(B)) == 0


async def test_hold_without_any_record_is_swept(store, tmp_path: Path):
    open_bucket(store, B)
    request_id = kill_at("reserved", tmp_path)
    assert store.exists(keys.hold(B, request_id))
    async with gateway(redis_url(), tmp_path, "killed") as one:
        assert one.accountant.pending == 0, "the journal knows nothing of it"
        expire(store, B, request_id)
        one.sweeper.sweep()
        await until(lambda: [t for _, t, _ in entries(store, B)] == ["w"])
        assert counter(store, B, ":g:", "conc_h") == 0


@pytest.mark.parametrize("step", ["opened", "ended"])
async def test_sweep_before_the_restart_is_corrected_not_added(store, tmp_path: Path, step: str):
    open_bucket(store, B)
    request_id = kill_at(step, tmp_path)
    async with gateway(redis_url(), tmp_path / "other", "g1") as other:
        expire(store, B, request_id)
        other.sweeper.sweep()
        await until(lambda: [t for _, t, _ in entries(store, B)] == ["w"])
        swept = counter(store, B, ":w:", "usd")
    async with gateway(redis_url(), tmp_path, "killed"):
        await until(lambda: len(entries(store, B)) == 2)
    assert [k for _, _, k in entries(store, B)] == [1, 0], "counted once in the store"
    assert counter(store, B, ":w:", "usd") == swept
    assert charged_by_rows(store) == (EXACT if step == "ended" else swept)
