"""The real ledger process killed at seeded moments: no row lost, none twice, counters exact."""

import os
import random
import signal
import threading
from pathlib import Path

import pytest
import redis
from django.db import connection, transaction

from routing.contracts.enums import SettleKind
from routing.contracts.process import ProcessStatus, decode_process_status
from routing.store import keys
from tenants.models import LedgerBucket
from tests.ledgering import (
    ScriptedGateway,
    Ticket,
    assert_exact,
    is_open,
    ledger_process,
    make_party,
    row_count,
    rows,
    until,
)

pytestmark = pytest.mark.django_db(transaction=True)

ROOT = Path(__file__).resolve().parent.parent.parent
SEED = int(os.environ.get("HEADRACE_TEST_SEED", "20240611"))


class Producer(threading.Thread):
    """Requests without pause; some settle twice, some are swept first, some counted again."""

    def __init__(self, url: str, parties: list[object], seed: int) -> None:
        super().__init__(daemon=True)
        self.client = redis.Redis.from_url(url)
        self.gateway = ScriptedGateway(self.client, lease_ms=1)
        self.parties = parties
        self.draw = random.Random(seed)
        self.served: list[str] = []
        self.stop = threading.Event()
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            while not self.stop.wait(0.002):
                self.one()
        except BaseException as error:  # noqa: BLE001 - shown by the test
            self.error = error

    def one(self) -> None:
        party = self.draw.choice(self.parties)
        ticket: Ticket = self.gateway.reserve(party)  # type: ignore[arg-type]
        self.served.append(ticket.request_id)
        spend = self.draw.randrange(1_000)
        if self.draw.random() < 0.2:
            while self.gateway.settle(ticket, SettleKind.SWEPT, spend_nanousd=999) == b"ALIVE":
                pass
        self.gateway.settle(ticket, spend_nanousd=spend)
        if self.draw.random() < 0.2:
            ticket.epoch = 0  # counted again, as after a rollback of the store
            self.gateway.settle(ticket, spend_nanousd=spend)


def test_killed_writer_loses_and_doubles_nothing(store: redis.Redis) -> None:
    print("seed", SEED)
    draw = random.Random(SEED)
    parties = [make_party(f"t{number}") for number in range(3)]
    gateway = ScriptedGateway(store)
    with ledger_process():
        until(lambda: all(is_open(store, party) for party in parties), what="first epoch")
    producer = Producer(os.environ["REDIS_URL"], list(parties), SEED)
    producer.start()
    for _ in range(5):
        with ledger_process() as process:
            before = row_count()
            until(lambda before=before: row_count() > before, what="rows")  # type: ignore[misc]
            pause = threading.Event()
            pause.wait(draw.random() * 0.3)  # somewhere inside a later batch
            process.send_signal(signal.SIGKILL)
    producer.stop.set()
    producer.join(timeout=20)
    assert producer.error is None
    with ledger_process() as process:
        until(lambda: all(_is_read(store, party.bucket) for party in parties), what="all read")
        until(lambda: rows("SELECT count(*) FROM tenants_counterdelta") == [(0,)], what="corrected")
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=20) == 0
    assert len(producer.served) > 50
    found = [str(row[0]) for row in rows("SELECT request_id FROM tenants_usage")]
    assert sorted(found) == sorted(producer.served)
    assert rows(
        "SELECT max(n) FROM (SELECT count(*) AS n FROM tenants_usageadjustment"
        " GROUP BY request_id) AS lates"
    ) == [(1,)]
    for party in parties:
        assert_exact(gateway, party)


def test_stopped_writer_takes_its_status_away_and_exits_0(store: redis.Redis) -> None:
    party, gateway = make_party(), ScriptedGateway(store)
    with ledger_process() as process:
        until(lambda: is_open(store, party), what="open")
        gateway.serve(party)
        until(lambda: row_count() == 1, what="row")
        field = f"ledger:{process.pid}"
        status = until(lambda: _status(store, field, "1 rows"), what="status")
        assert status.lag_s == 0
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=20) == 0
        assert not store.hexists(keys.PROCESSES, field)


def test_writer_waits_for_postgres_and_says_how_far_it_is_behind(store: redis.Redis) -> None:
    party, gateway = make_party(), ScriptedGateway(store)
    with ledger_process() as process:
        until(lambda: is_open(store, party), what="open")
        with transaction.atomic():
            # as if PostgreSQL hung: the batch waits for its lock, and gives up after 5 s
            LedgerBucket.objects.select_for_update().get(pk=party.bucket)
            _run("LOCK TABLE tenants_usage, tenants_ledgerbucket IN ACCESS EXCLUSIVE MODE")
            gateway.serve(party)
            field = f"ledger:{process.pid}"
            until(lambda: _lag_s(store, field) > 1, what="lag")
        for _ in range(2):
            _run(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE application_name = 'headrace-ledger' AND datname = current_database()"
            )
        until(lambda: row_count() == 1, what="row after PostgreSQL came back")
        assert process.poll() is None
    assert_exact(gateway, party)


def _run(sql: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(sql)


def _status(client: redis.Redis, field: str, note: str) -> ProcessStatus | None:
    raw = client.hget(keys.PROCESSES, field)
    if raw is None:
        return None
    status = decode_process_status(raw)
    return status if note in status.note else None


def _lag_s(client: redis.Redis, field: str) -> float:
    status = _status(client, field, "rows")
    return status.lag_s or 0.0 if status else 0.0


def _is_read(client: redis.Redis, bucket: int) -> bool:
    last = client.xrevrange(keys.bucket_usage(bucket), count=1)
    pos = LedgerBucket.objects.get(pk=bucket).pos
    meta = client.hget(keys.bucket_meta(bucket), "pos")
    return bool(last) and last[0][0].decode() == pos == (meta or b"").decode()
