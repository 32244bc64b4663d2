"""The audit chain in PostgreSQL: append-only, linked, serialised, and honest about tampering."""

import threading

import pytest
from django.db import DatabaseError, connection, transaction

from console.audit.rules import SYSTEM, Actor
from console.audit.selectors import AuditFilter, trail, verify_chain
from console.audit.services import record
from console.models import AuditEvent

pytestmark = pytest.mark.django_db(transaction=True)

WRITERS, EACH = 6, 5


def write(act: str = "test.act", **fields: object) -> None:
    with transaction.atomic():
        record(actor=SYSTEM, act=act, object_type="thing", object_id="1", **fields)


def tamper(sql: str) -> None:
    """Change a row as someone who may disable triggers would."""
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("ALTER TABLE console_auditevent DISABLE TRIGGER audit_append_only")
        cursor.execute(sql)
        cursor.execute("ALTER TABLE console_auditevent ENABLE TRIGGER audit_append_only")


def test_the_chain_holds_over_every_kind_of_value():
    write(before={"a": 1.5, "b": [None, True, 10**18], "c": "ü\x00\ud800"}, reason="weil ü")
    write(after=["x", {"y": 1e300}])
    write()
    assert verify_chain().is_intact
    assert verify_chain().checked_count == 3


@pytest.mark.parametrize("sql", ["UPDATE {} SET reason = 'x'", "DELETE FROM {}"])
def test_plain_sql_cannot_change_the_trail(sql):
    write()
    with pytest.raises(DatabaseError, match="append-only"), connection.cursor() as cursor:
        cursor.execute(sql.format("console_auditevent"))
    assert AuditEvent.objects.count() == 1


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE console_auditevent SET reason = 'other' WHERE id = {id}",
        "UPDATE console_auditevent SET after = '{{\"n\": 2}}' WHERE id = {id}",
        "UPDATE console_auditevent SET at = at + interval '1 microsecond' WHERE id = {id}",
        "DELETE FROM console_auditevent WHERE id = {id}",
        "UPDATE console_auditevent SET hash = repeat('0', 64) WHERE id = {id}",
    ],
    ids=["reason", "after", "instant", "deleted", "hash"],
)
def test_what_was_tampered_with_is_named(change):
    for number in range(4):
        write(after={"n": number})
    ids = list(AuditEvent.objects.order_by("id").values_list("pk", flat=True))
    tamper(change.format(id=ids[1]))
    report = verify_chain()
    assert report.broken_at_id in (ids[1], ids[2])
    assert not report.is_intact
    assert report.checked_count <= 2


def test_parallel_writers_make_one_chain():
    def writer() -> None:
        for _ in range(EACH):
            write()
        connection.close()

    threads = [threading.Thread(target=writer) for _ in range(WRITERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    report = verify_chain()
    assert report.is_intact
    assert report.checked_count == WRITERS * EACH


def test_an_act_that_fails_leaves_no_trace_and_breaks_no_chain():
    write()

    @transaction.atomic
    def act() -> None:
        record(actor=SYSTEM, act="lost", object_type="thing", object_id="1")
        raise LookupError

    with pytest.raises(LookupError):
        act()
    write()
    assert verify_chain().is_intact
    assert [line.act for line in trail(AuditFilter())] == ["test.act", "test.act"]


def test_a_trace_outside_a_transaction_is_refused():
    with pytest.raises(transaction.TransactionManagementError):
        record(actor=Actor(None, "x"), act="a", object_type="t", object_id="1")
