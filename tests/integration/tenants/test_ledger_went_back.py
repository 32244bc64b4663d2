"""A database that went back to a backup while the store went on: named, followed, refilled."""

import time

import pytest
import redis
from django.db import connection

from routing.store import keys
from tenants.ledger.writer import rebuild as rebuilding
from tenants.models import DamagedEntry
from tests.ledgering import (
    Party,
    ScriptedGateway,
    assert_exact,
    cycle,
    is_open,
    make_writer,
    row_count,
)

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def gateway(store: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> ScriptedGateway:
    monkeypatch.setattr(rebuilding, "REGISTER_WAIT_MS", 30)  # nobody has to register here
    cycle()
    return ScriptedGateway(store)


def _take(tables: tuple[str, ...]) -> None:
    """Keep the ledger's tables as they are now: a backup."""
    for name in tables:
        _run(f"CREATE TABLE kept_{name} AS TABLE {name}")


def _put_back(tables: tuple[str, ...]) -> None:
    """The ledger's tables as they were: a restore, under whatever runs."""
    for name in tables:
        _run(f"ALTER TABLE {name} DISABLE TRIGGER USER")
        _run(f"DELETE FROM {name}")
        _run(f"INSERT INTO {name} SELECT * FROM kept_{name}")
        _run(f"ALTER TABLE {name} ENABLE TRIGGER USER")
        _run(f"DROP TABLE kept_{name}")


def _run(sql: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(sql)


LEDGER = (
    "tenants_usage",
    "tenants_usagerollup",
    "tenants_windowusage",
    "tenants_ledgerbucket",
    "tenants_counterdelta",
)


@pytest.mark.parametrize("is_noticed_at_once", [True, False])
def test_database_that_went_back_is_seen_named_and_followed_by_the_counters(
    gateway: ScriptedGateway, party: Party, is_noticed_at_once: bool
) -> None:
    gateway.serve(party, spend_nanousd=100)
    cycle()
    _take(LEDGER)
    lost = gateway.serve(party, spend_nanousd=40)
    gateway.serve(party, spend_nanousd=5)  # the last acknowledged entry stays in the stream
    cycle()
    assert row_count() == 3
    writer = make_writer()
    writer.cycle()  # it has looked: the next look is 5 s away
    if is_noticed_at_once:
        writer.close()
    _put_back(LEDGER)
    kept = gateway.serve(party, spend_nanousd=3)
    for _ in range(8):
        writer.cycle()
        time.sleep(0.02)
    writer.close()
    assert is_open(gateway.client, party, 2)
    assert assert_exact(gateway, party)["usd"] == 108
    gaps = writer._progress.gaps
    assert gaps.buckets == 1
    assert gaps.since_s <= gaps.until_s <= time.time()
    parked = DamagedEntry.objects.get()
    assert parked.stream == keys.bucket_usage(party.bucket)
    # Its gateway had not been told that the row was committed: it settles again, and is booked.
    gateway.register(lost)
    gateway.settle(lost, spend_nanousd=40)
    cycle()
    assert assert_exact(gateway, party)["usd"] == 148
    assert kept.request_id != lost.request_id
    assert row_count() == 4
    assert DamagedEntry.objects.count() == 1
