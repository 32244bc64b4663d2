"""A store that restarted or lost its memory: new epochs, counters filled from the ledger."""

import time

import msgspec
import pytest
import redis
from django.conf import settings

from routing.contracts.enums import SettleKind
from routing.store import keys
from routing.store.counters import Answer, StoreSession
from routing.store.packed import read_hold
from tenants.ledger.writer import process
from tenants.ledger.writer import rebuild as rebuilding
from tenants.ledger.writer.corrections import apply_corrections
from tenants.ledger.writer.database import Database
from tenants.ledger.writer.ingest import Known
from tenants.ledger.writer.rebuild import begin_rebuild, check_health, finish_rebuild
from tenants.models import CounterDelta, LedgerBucket, WindowUsage
from tests.ledgering import (
    Party,
    ScriptedGateway,
    assert_exact,
    cycle,
    is_open,
    make_party,
    make_writer,
    row_count,
    running_writer,
    until,
)

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def short_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody has to register here: do not wait the full 6 s for them."""
    monkeypatch.setattr(rebuilding, "REGISTER_WAIT_MS", 30)


@pytest.fixture
def gateway(store: redis.Redis, short_wait: None) -> ScriptedGateway:
    cycle()
    return ScriptedGateway(store)


def work_until(client: redis.Redis, party: Party, epoch: int) -> None:
    with running_writer():
        until(lambda: is_open(client, party, epoch), what=f"epoch {epoch}")
        until(lambda: not client.xlen(keys.bucket_usage(party.bucket)) or _is_read(client, party))


def _is_read(client: redis.Redis, party: Party) -> bool:
    last = client.xrevrange(keys.bucket_usage(party.bucket), count=1)[0][0].decode()
    return bool(LedgerBucket.objects.get(pk=party.bucket).pos == last)


def test_flushed_store_is_filled_with_what_it_held(gateway: ScriptedGateway, party: Party) -> None:
    for spend in (100, 250, 7):
        gateway.serve(party, spend_nanousd=spend)
    cycle()
    before = gateway.day_counters(party)
    gateway.client.flushall()
    work_until(gateway.client, party, 2)
    after = gateway.day_counters(party)
    assert after == before
    assert assert_exact(gateway, party)["usd"] == 357


def test_every_bucket_is_rebuilt_after_one_wait(gateway: ScriptedGateway, party: Party) -> None:
    for bucket in range(keys.BUCKETS):
        gateway.client.hset(keys.bucket_meta(bucket), "run_id", "the-process-before")
    session, database = StoreSession.open(_url()), Database.from_settings()
    sick = check_health(database, session).sick
    assert set(sick.values()) == {"another server process"}
    rebuild = begin_rebuild(database, session, sorted(sick))
    assert rebuild.ready_at_ms - session.now_ms() <= rebuilding.REGISTER_WAIT_MS
    finish_rebuild(database, session, rebuild, Known())
    assert len(rebuild.opened) == keys.BUCKETS
    assert not check_health(database, session).sick
    session.close()
    database.close()


def test_gateways_have_six_seconds_to_register(store: redis.Redis, party: Party) -> None:
    """The hold went with the store; its gateway registers within the wait, so it is counted."""
    cycle()
    gateway = ScriptedGateway(store)
    ticket = gateway.reserve(party)
    gateway.client.flushall()
    began = time.monotonic()
    with running_writer():
        until(lambda: gateway.client.exists(keys.bucket_meta(party.bucket)), what="begin")
        assert not is_open(gateway.client, party)
        assert gateway.register(ticket) == 1
        until(lambda: is_open(gateway.client, party, 2), what="opened")
    assert 5.5 < time.monotonic() - began < 15
    assert gateway.day_counters(party)["usd_h"] == 1_000
    gateway.settle(ticket)
    cycle()
    assert assert_exact(gateway, party)["usd"] == 300


def test_hold_that_survived_is_registered_by_the_writer(
    gateway: ScriptedGateway, party: Party
) -> None:
    ticket = gateway.reserve(party)
    gateway.client.delete(keys.bucket_meta(party.bucket))
    work_until(gateway.client, party, 2)
    assert gateway.day_counters(party)["usd_h"] == 1_000
    gateway.settle(ticket)
    cycle()
    assert assert_exact(gateway, party) == {"req": 1, "in": 10, "out": 5, "usd": 300}


def test_holds_of_the_release_before_are_taken_over(gateway: ScriptedGateway, party: Party) -> None:
    """It kept them as hashes; their gateways may be gone, so nobody else knows what is held."""
    kept, dead = gateway.reserve(party), gateway.reserve(party)
    for ticket in (kept, dead):
        name = keys.hold(party.bucket, ticket.request_id)
        hold = read_hold(gateway.client.get(name) or b"")
        gateway.client.delete(name)
        written = {"x": hold.expiry_ms, "o": 7, "e": hold.epoch, "l": hold.legs, "i": hold.info}
        gateway.client.hset(name, mapping=written)
    run_id = str(gateway.client.info("server")["run_id"])
    gateway.client.hset(keys.bucket_meta(party.bucket), "run_id", f"{run_id}.2")
    work_until(gateway.client, party, 2)
    assert gateway.day_counters(party)["usd_h"] == 2_000
    assert gateway.settle(kept) == b"OK"
    found = read_hold(gateway.client.get(keys.hold(party.bucket, dead.request_id)) or b"")
    assert (found.epoch, found.out_so_far, found.info) == (2, 7, b"info")
    assert msgspec.msgpack.decode(found.legs) == dead.legs
    assert gateway.settle(dead, SettleKind.SWEPT) == b"ALIVE"
    assert gateway.settle(dead) == b"OK"
    cycle()
    assert gateway.day_counters(party)["usd_h"] == 0
    assert assert_exact(gateway, party)["usd"] == 600


def test_lost_meta_of_one_bucket_leaves_the_others_alone(
    gateway: ScriptedGateway, party: Party
) -> None:
    candidates = (make_party(f"other-{number}") for number in range(keys.BUCKETS))
    other = next(one for one in candidates if one.bucket != party.bucket)
    gateway.serve(other)
    gateway.client.delete(keys.bucket_meta(party.bucket))
    work_until(gateway.client, party, 2)
    assert is_open(gateway.client, other, 1)
    cycle()
    assert_exact(gateway, other)


def test_unread_entries_of_the_old_epoch_are_booked_before_the_fill(
    gateway: ScriptedGateway, party: Party
) -> None:
    for _ in range(600):  # more than one batch
        gateway.serve(party, spend_nanousd=1)
    gateway.client.delete(keys.bucket_meta(party.bucket))
    work_until(gateway.client, party, 2)
    assert row_count() == 600
    assert assert_exact(gateway, party)["usd"] == 600
    assert not CounterDelta.objects.exists()


def test_bucket_opens_with_its_unread_entries_already_counted(
    gateway: ScriptedGateway, party: Party
) -> None:
    """Opened first and corrected later, it would admit what is spent already."""
    for _ in range(300):  # more than one batch
        gateway.serve(party, spend_nanousd=1)
    gateway.client.delete(keys.bucket_meta(party.bucket))
    session, database = StoreSession.open(_url()), Database.from_settings()
    rebuild = begin_rebuild(database, session, [party.bucket])
    assert finish_rebuild(database, session, rebuild, Known()) == 300
    assert gateway.day_counters(party)["usd"] == 300
    session.close()
    database.close()


def test_correction_of_another_epoch_is_kept_for_its_rebuild(
    gateway: ScriptedGateway, party: Party
) -> None:
    CounterDelta.objects.create(bucket=party.bucket, seq=1, epoch=9, rows=[])
    session, database = StoreSession.open(_url()), Database.from_settings()
    assert apply_corrections(database, session) == {party.bucket}
    assert CounterDelta.objects.count() == 1
    session.close()
    database.close()


def test_entry_lost_with_the_store_comes_back_from_the_gateway_once(
    gateway: ScriptedGateway, party: Party
) -> None:
    ticket = gateway.serve(party)  # settled, not read
    gateway.client.flushall()
    work_until(gateway.client, party, 2)
    assert row_count() == 0
    gateway.settle(ticket)  # never acknowledged, so its gateway sends it again
    gateway.settle(ticket)
    cycle()
    assert row_count() == 1
    assert assert_exact(gateway, party)["usd"] == 300


def test_settle_sent_again_into_a_new_epoch_is_taken_back(
    gateway: ScriptedGateway, party: Party
) -> None:
    ticket = gateway.serve(party)
    cycle()  # booked; but the gateway saw no acknowledgement
    gateway.client.flushall()
    work_until(gateway.client, party, 2)
    gateway.settle(ticket)  # no hold, older epoch: counted
    assert gateway.day_counters(party)["usd"] == 600
    cycle()
    assert row_count() == 1
    assert assert_exact(gateway, party)["usd"] == 300


def test_swept_row_and_exact_settle_across_a_loss(store: redis.Redis, short_wait: None) -> None:
    cycle()
    party, gateway = make_party(), ScriptedGateway(store, lease_ms=1)
    ticket = gateway.reserve(party)
    while gateway.settle(ticket, SettleKind.SWEPT, spend_nanousd=900) == b"ALIVE":
        pass
    cycle()
    gateway.client.flushall()
    work_until(gateway.client, party, 2)
    gateway.settle(ticket, spend_nanousd=200)
    cycle()
    assert assert_exact(gateway, party)["usd"] == 200


def test_rebuild_killed_after_begin_is_taken_over_with_a_higher_epoch(
    gateway: ScriptedGateway, party: Party
) -> None:
    gateway.serve(party)
    cycle()
    gateway.client.flushall()
    session, database = StoreSession.open(_url()), Database.from_settings()
    stalled = begin_rebuild(database, session, range(keys.BUCKETS))
    work_until(gateway.client, party, 3)
    gateway.serve(party)
    finish_rebuild(database, session, stalled, Known())  # wakes up much later
    assert not stalled.opened
    assert session.delta(party.bucket, 2, 99, []) is Answer.OLD
    session.close()
    database.close()
    cycle()
    assert assert_exact(gateway, party)["req"] == 2


def test_rebuild_killed_after_its_last_commit_is_taken_over(
    gateway: ScriptedGateway, party: Party, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway.serve(party)
    cycle()
    gateway.client.flushall()
    session, database = StoreSession.open(_url()), Database.from_settings()
    rebuild = begin_rebuild(database, session, range(keys.BUCKETS))
    with monkeypatch.context() as patch:
        patch.setattr(rebuilding, "_open", lambda *_: set())
        finish_rebuild(database, session, rebuild, Known())
    session.close()
    database.close()
    assert not is_open(gateway.client, party)
    work_until(gateway.client, party, 3)
    assert_exact(gateway, party)


def test_only_one_writer_rebuilds(gateway: ScriptedGateway, party: Party) -> None:
    owner = Database.from_settings()
    assert owner.try_lock_rebuild()
    gateway.client.flushall()
    writer = make_writer()
    writer.cycle()
    assert not gateway.client.exists(keys.bucket_meta(party.bucket))
    owner.close()  # killed: its lock goes with its connection
    writer.close()
    work_until(gateway.client, party, 2)


def test_ledger_that_went_back_to_a_backup_opens_a_new_epoch(
    gateway: ScriptedGateway, party: Party
) -> None:
    gateway.serve(party)
    cycle()
    LedgerBucket.objects.filter(pk=party.bucket).update(pos="0-0")
    work_until(gateway.client, party, 2)
    assert row_count() == 1
    assert assert_exact(gateway, party)["usd"] == 300


def test_bucket_whose_epochs_differ_is_rebuilt_above_both(
    gateway: ScriptedGateway, party: Party
) -> None:
    gateway.client.hset(keys.bucket_meta(party.bucket), "epoch", 7)
    work_until(gateway.client, party, 8)


def test_pending_corrections_are_in_the_sums_and_not_applied_on_top(
    gateway: ScriptedGateway, party: Party
) -> None:
    ticket = gateway.serve(party)
    cycle()
    row = [[str(ticket.legs[0][1]), "usd", 5_000, int(str(ticket.legs[0][2]))]]
    CounterDelta.objects.create(bucket=party.bucket, seq=1, epoch=1, rows=row)
    LedgerBucket.objects.filter(pk=party.bucket).update(seq=1)
    gateway.client.flushall()
    work_until(gateway.client, party, 2)
    cycle()
    assert not CounterDelta.objects.exists()
    assert_exact(gateway, party)


def test_ended_windows_are_filled_only_while_their_counters_live(
    gateway: ScriptedGateway, party: Party
) -> None:
    ticket = gateway.serve(party)
    cycle()
    end_ms = int(str(ticket.legs[0][2]))
    row = WindowUsage.objects.get()
    old = row.window_end_at - rebuilding.COUNTER_KEPT * 3
    WindowUsage.objects.create(
        bucket=party.bucket, suffix="w:1:old:1", window_end_at=old, spend_nanousd=5
    )
    gateway.client.flushall()
    work_until(gateway.client, party, 2)
    tag = keys.bucket_tag(party.bucket)
    names = list(gateway.client.scan_iter(f"{tag}:2:w:*"))
    assert names == [f"{tag}:2:{row.suffix}".encode()]
    assert gateway.client.pexpiretime(names[0]) == end_ms + 26 * 3_600_000


def test_emptied_store_is_noticed_without_the_full_check(
    gateway: ScriptedGateway, party: Party, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "CHECK_S", 3_600)
    with running_writer():
        gateway.serve(party)
        until(lambda: row_count() == 1)
        gateway.client.flushall()
        until(lambda: is_open(gateway.client, party, 2), what="new epoch")


def test_position_of_a_killed_writer_is_acknowledged_by_the_next(
    gateway: ScriptedGateway, party: Party, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway.serve(party)
    with monkeypatch.context() as patch:
        patch.setattr(process, "publish_positions", lambda *_: set())
        cycle()
    assert row_count() == 1
    assert gateway.client.hget(keys.bucket_meta(party.bucket), "pos") == b"0-0"
    cycle()
    pos = LedgerBucket.objects.get(pk=party.bucket).pos
    assert gateway.client.hget(keys.bucket_meta(party.bucket), "pos") == pos.encode()


def test_connection_that_broke_is_replaced(gateway: ScriptedGateway, party: Party) -> None:
    with running_writer():
        for _ in range(5):
            gateway.serve(party)
            gateway.client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        until(lambda: row_count() == 5)
    cycle()
    assert_exact(gateway, party)


def _url() -> str:
    return str(settings.REDIS_URL)
