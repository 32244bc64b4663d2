"""The stream becomes rows exactly once, whatever is sent again, and by however many writers."""

import threading

import msgspec
import psycopg
import pytest
import redis
from django.conf import settings
from django.db import connection

from routing.contracts.enums import RequestStatus, SettleKind
from routing.contracts.ids import uuid7
from routing.contracts.usage import ShapeRow, encode_shapes
from routing.store import keys
from routing.store.counters import StoreSession
from tenants.ledger.writer.corrections import apply_corrections
from tenants.ledger.writer.database import Database
from tenants.models import CounterDelta, DamagedEntry, LedgerBucket, UsageAdjustment
from tests.accounting import set_fields
from tests.ledgering import (
    Party,
    ScriptedGateway,
    assert_exact,
    cycle,
    event_of,
    ledger_sums,
    make_party,
    make_writer,
    rollup_sums,
    row_count,
    rows,
)

pytestmark = pytest.mark.django_db(transaction=True)


def test_virgin_system_is_open_after_one_cycle(gateway: ScriptedGateway) -> None:
    states = set(LedgerBucket.objects.values_list("state", "epoch"))
    assert states == {("ready", 1)}
    assert LedgerBucket.objects.count() == keys.BUCKETS


def test_settled_request_becomes_one_row_with_rollups(
    gateway: ScriptedGateway, party: Party
) -> None:
    gateway.serve(party)
    gateway.serve(party, status=RequestStatus.FAILED, spend_nanousd=0, output_tokens=0)
    # refused by a second upstream as the caller's fault, after the first had lost it
    refused = {"error_code": "invalid_request", "http_status": 400, "spend_nanousd": 0}
    gateway.serve(party, status=RequestStatus.FAILED, output_tokens=0, **refused)
    gateway.serve(party, status=RequestStatus.CANCELLED, output_tokens=2, spend_nanousd=100)
    cycle()
    assert assert_exact(gateway, party) == {"req": 4, "in": 40, "out": 7, "usd": 400}
    assert rows(
        "SELECT sum(failed), sum(cancelled), sum(cached_tokens) FROM tenants_usagerollup"
        " WHERE grain = 'h'"
    ) == [(1, 1, 16)]


def test_position_is_acknowledged_and_stream_trimmed(
    gateway: ScriptedGateway, party: Party
) -> None:
    for _ in range(3):
        gateway.serve(party)
    cycle()
    state = LedgerBucket.objects.get(pk=party.bucket)
    meta = gateway.client.hgetall(keys.bucket_meta(party.bucket))
    assert meta[b"pos"].decode() == state.pos
    assert gateway.client.xlen(keys.bucket_usage(party.bucket)) == 1  # the entry at the position


def test_settle_sent_again_changes_nothing(gateway: ScriptedGateway, party: Party) -> None:
    ticket = gateway.serve(party)
    gateway.settle(ticket)
    cycle()
    gateway.settle(ticket)
    cycle()
    assert row_count() == 1
    assert assert_exact(gateway, party)["usd"] == 300


def test_void_is_a_zero_row_and_no_request(gateway: ScriptedGateway, party: Party) -> None:
    ticket = gateway.reserve(party)
    gateway.settle(ticket, SettleKind.VOID, spend_nanousd=999)
    cycle()
    assert rows(
        "SELECT kind, spend_nanousd, input_tokens, reasoning_tokens FROM tenants_usage"
    ) == [("v", 0, 0, 0)]
    assert assert_exact(gateway, party) == {"req": 0, "in": 0, "out": 0, "usd": 0}


def test_late_settle_corrects_a_swept_row_once(party: Party, store: redis.Redis) -> None:
    cycle()
    gateway = ScriptedGateway(store, lease_ms=1)
    ticket = gateway.reserve(party)
    while gateway.settle(ticket, SettleKind.SWEPT, spend_nanousd=900) == b"ALIVE":
        pass
    gateway.settle(ticket, spend_nanousd=250, output_tokens=3)
    gateway.settle(ticket, spend_nanousd=250, output_tokens=3)
    cycle()
    cycle()
    assert list(UsageAdjustment.objects.values_list("reason", "spend_nanousd", "requests")) == [
        ("late", -650, 0)
    ]
    assert rows("SELECT kind, spend_nanousd FROM tenants_usage") == [("w", 900)]
    assert assert_exact(gateway, party) == {"req": 1, "in": 10, "out": 3, "usd": 250}


def test_late_void_takes_the_swept_request_back(party: Party, store: redis.Redis) -> None:
    cycle()
    gateway = ScriptedGateway(store, lease_ms=1)
    ticket = gateway.reserve(party)
    while gateway.settle(ticket, SettleKind.SWEPT) == b"ALIVE":
        pass
    cycle()
    gateway.settle(ticket, SettleKind.VOID)
    cycle()
    assert assert_exact(gateway, party) == {"req": 0, "in": 0, "out": 0, "usd": 0}


def test_counter_that_counted_a_booked_request_again_is_corrected(
    gateway: ScriptedGateway, party: Party
) -> None:
    """A hold revived by a store that rolled back: its row exists, the counter moved twice."""
    ticket = gateway.serve(party)
    cycle()
    ticket.epoch = 0  # so settle counts it
    gateway.settle(ticket)
    assert gateway.day_counters(party)["usd"] == 600
    cycle()
    assert row_count() == 1
    assert assert_exact(gateway, party)["usd"] == 300
    assert not CounterDelta.objects.exists()


def test_entry_that_no_counter_holds_is_added(gateway: ScriptedGateway, party: Party) -> None:
    """k = 0 and no row: ended in this epoch, but the row went with PostgreSQL's backup."""
    ticket = gateway.reserve(party)
    event = event_of(ticket)
    gateway.settle(ticket)
    gateway.client.delete(keys.bucket_usage(party.bucket))
    name = f"{keys.bucket_tag(party.bucket)}:1:{ticket.legs[0][1]}"
    set_fields(gateway.client, name, **dict.fromkeys(("req", "in", "out", "usd"), 0))
    gateway.send(ticket, SettleKind.SETTLED, event)
    cycle()
    assert assert_exact(gateway, party)["usd"] == 300


def test_two_writers_book_each_entry_once(gateway: ScriptedGateway) -> None:
    parties = [make_party(f"tenant-{number}") for number in range(6)]
    writers = [make_writer(), make_writer()]
    stop = threading.Event()

    def work(index: int) -> None:
        while not stop.is_set():
            writers[index].cycle()

    threads = [threading.Thread(target=work, args=(index,)) for index in range(2)]
    for thread in threads:
        thread.start()
    for _ in range(25):
        for member in parties:
            gateway.serve(member)
    stop.set()
    for thread in threads:
        thread.join(timeout=20)
    for writer in writers:
        writer.cycle()
        writer.close()
    assert row_count() == 150
    for member in parties:
        assert assert_exact(gateway, member)["req"] == 25


def test_locked_bucket_is_left_to_its_writer(gateway: ScriptedGateway, party: Party) -> None:
    other = make_party("other")
    assert other.bucket != party.bucket
    gateway.serve(party)
    gateway.serve(other)
    holder = Database.from_settings()
    with holder.transaction() as cursor:
        cursor.execute(
            "SELECT 1 FROM tenants_ledgerbucket WHERE bucket = %s FOR UPDATE", [party.bucket]
        )
        writer = make_writer()
        writer.cycle()
        assert row_count() == 1
        assert ledger_sums(other)["req"] == 1
    holder.close()
    writer.cycle()
    writer.close()
    assert row_count() == 2


def test_correction_survives_a_kill_between_commit_and_delta(
    gateway: ScriptedGateway, party: Party, monkeypatch: pytest.MonkeyPatch
) -> None:
    ticket = gateway.serve(party)
    cycle()
    ticket.epoch = 0
    gateway.settle(ticket)
    with monkeypatch.context() as patch:

        def killed(self: StoreSession, *_: object) -> None:
            raise SystemExit("killed before the correction left")

        patch.setattr(StoreSession, "delta", killed)
        writer = make_writer()
        with pytest.raises(SystemExit):
            writer.cycle()
        writer.close()
    assert CounterDelta.objects.count() == 1
    assert gateway.day_counters(party)["usd"] == 600
    cycle()
    assert_exact(gateway, party)
    assert not CounterDelta.objects.exists()


def test_correction_applied_but_not_deleted_is_not_applied_again(
    gateway: ScriptedGateway, party: Party
) -> None:
    ticket = gateway.serve(party)
    cycle()
    ticket.epoch = 0
    gateway.settle(ticket)
    cycle()
    correction = [[str(ticket.legs[0][1]), "usd", -300, int(str(ticket.legs[0][2]))]]
    CounterDelta.objects.create(bucket=party.bucket, seq=1, epoch=1, rows=correction)
    session = StoreSession.open(settings.REDIS_URL)
    database = Database.from_settings()
    assert apply_corrections(database, session) == set()
    session.close()
    database.close()
    assert_exact(gateway, party)
    assert not CounterDelta.objects.exists()


@pytest.mark.parametrize(
    "field",
    [
        {"e": b"{"},
        {"e": b"\xff\xfe"},
        {"t": b"q"},
        {"k": b"one"},
        {"e": None},
    ],
)
def test_damaged_entry_is_parked_and_the_stream_goes_on(
    gateway: ScriptedGateway, party: Party, field: dict[str, bytes | None]
) -> None:
    gateway.serve(party)
    entry = {"id": b"x", "k": b"1", "t": b"s", "e": b"{}", **field}
    fields = {name: value for name, value in entry.items() if value is not None}
    gateway.client.xadd(keys.bucket_usage(party.bucket), fields)  # type: ignore[arg-type]
    gateway.serve(party)
    cycle()
    assert row_count() == 2
    parked = DamagedEntry.objects.get()
    assert parked.stream == keys.bucket_usage(party.bucket)
    assert_exact(gateway, party)


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"tenant_id": "999999"}, "unknown tenant"),
        ({"key_id": "999999"}, "unknown key"),
        ({"project_id": "12a"}, "no number"),
        ({"spend_nanousd": -1}, "out of range"),
        ({"ended_at_ms": 10**18}, "out of range"),
        ({"request_id": "no-uuid"}, "no UUID"),
        ({"request_id": uuid7(4_102_444_800_000, 1)}, "too far away"),
        ({"legs": [[1, "w:\x00", 5, []]]}, "counter name"),
    ],
)
def test_event_that_no_table_takes_is_parked_with_its_reason(
    gateway: ScriptedGateway, party: Party, change: dict[str, object], word: str
) -> None:
    ticket = gateway.reserve(party)
    gateway.send(ticket, SettleKind.SETTLED, event_of(ticket, **change))
    cycle()
    assert row_count() == 0
    assert word in DamagedEntry.objects.get().reason
    gateway.serve(party)
    cycle()
    assert row_count() == 1


def test_refusal_by_a_table_parks_only_the_refused(gateway: ScriptedGateway, party: Party) -> None:
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE tenants_usage ADD CONSTRAINT odd CHECK (output_tokens <> 77)")
    try:
        for output in (5, 77, 5, 5, 77, 5):
            gateway.serve(party, output_tokens=output)
        cycle()
        cycle()
        assert row_count() == 4
        assert DamagedEntry.objects.count() == 2
    finally:
        with connection.cursor() as cursor:
            cursor.execute("ALTER TABLE tenants_usage DROP CONSTRAINT odd")


def test_texts_that_a_client_chose_cannot_stop_a_row(
    gateway: ScriptedGateway, party: Party
) -> None:
    gateway.serve(party, model_asked="m" * 5_000, task_id="a\x00b", step="é" * 100)
    cycle()
    assert rows("SELECT length(model_asked), task_id, length(step) FROM tenants_usage") == [
        (200, "a\ufffdb", 32)
    ]


def test_row_goes_into_the_partition_of_its_id(gateway: ScriptedGateway, party: Party) -> None:
    """A request of yesterday that ends today: id, row and rollup stay yesterday's."""
    ticket = gateway.reserve(party)
    ticket.at_ms -= 86_400_000
    old_id = uuid7(ticket.at_ms, 12345)
    gateway.send(ticket, SettleKind.SETTLED, event_of(ticket, request_id=old_id))
    cycle()
    table, day = rows("SELECT tableoid::regclass::text, day FROM tenants_usage")[0]
    assert table == f"tenants_usage_{day:%Y%m%d}"
    assert rows(
        "SELECT count(*) FROM tenants_usagerollup WHERE grain = 'd' AND start_at::date = %s", day
    ) == [(1,)]


def test_ledger_rows_cannot_be_changed(gateway: ScriptedGateway, party: Party) -> None:
    gateway.serve(party)
    cycle()
    database = Database.from_settings()
    with pytest.raises(psycopg.IntegrityError), database.transaction() as cursor:
        cursor.execute("UPDATE tenants_usage SET spend_nanousd = 0")
    database.close()


def test_shapes_reach_their_table_once(gateway: ScriptedGateway, party: Party) -> None:
    now_ms = gateway.now_ms()
    shape = ShapeRow(
        request_id=uuid7(now_ms, 7),
        tenant_id=str(party.tenant_id),
        model="alpha-8b",
        work_class="standard",
        arrived_at_ms=now_ms,
        outcome="refused:budget_exceeded",
        ended_at_ms=now_ms + 1,
        prefix_hashes=[1, -(2**63)],
        key_id=str(party.key_id),
        refused_code="budget_exceeded",
        refused_status=429,
        refused_limit="spend_per_day",
        refused_scope="tenant",
        retry_after_ms=60_000,
    )
    old = msgspec.structs.replace(shape, request_id=uuid7(now_ms - 30 * 86_400_000, 8))
    gateway.client.xadd(keys.SHAPES, {"s": encode_shapes([shape, old])})
    gateway.client.xadd(keys.SHAPES, {"s": b"\xc1"})
    gateway.client.xadd(keys.SHAPES, {"s": encode_shapes([shape])})
    cycle()
    cycle()
    assert rows("SELECT outcome, prefix_hashes::text FROM tenants_shape") == [
        ("refused:budget_exceeded", "[1, -9223372036854775808]")
    ]
    assert rows(
        "SELECT key_id, refused_code, refused_status, refused_limit, refused_scope, retry_after_ms"
        " FROM tenants_shape"
    ) == [(party.key_id, "budget_exceeded", 429, "spend_per_day", "tenant", 60_000)]
    assert DamagedEntry.objects.get().stream == "shapes"


def test_a_shape_of_a_request_that_nothing_refused_names_no_refusal(
    gateway: ScriptedGateway, party: Party
) -> None:
    now_ms = gateway.now_ms()
    served = ShapeRow(
        request_id=uuid7(now_ms, 7),
        tenant_id=str(party.tenant_id),
        model="alpha-8b",
        work_class="standard",
        arrived_at_ms=now_ms,
        outcome="ok",
        ended_at_ms=now_ms + 1,
    )
    gateway.client.xadd(keys.SHAPES, {"s": encode_shapes([served])})
    cycle()
    assert rows("SELECT outcome, refused_code, refused_status FROM tenants_shape") == [
        ("ok", None, None)
    ]


def test_rollups_of_all_grains_agree_across_many_requests(
    gateway: ScriptedGateway, party: Party
) -> None:
    for number in range(40):
        gateway.serve(party, spend_nanousd=number, model=f"m{number % 3}")
    cycle()
    assert {grain: rollup_sums(party, grain)["usd"] for grain in "mhd"} == dict.fromkeys(
        "mhd", sum(range(40))
    )
