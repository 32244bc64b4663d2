"""Reconcile on real servers: each kind of damage is found, named, and repaired to zero."""

import json
import os
import threading

import msgspec
import pytest
import redis
from django.core.management import call_command
from django.db import connection
from django.test import Client

from console.audit.rules import Actor
from console.jobs.registry import handler_of
from console.models import AuditEvent, Job
from routing.contracts.enums import SettleKind
from routing.contracts.snapshot import Price
from routing.contracts.usage import HoldInfo, encode_hold_info
from routing.store import keys
from routing.store.plans import as_text
from tenants.models import DamagedEntry, Project, UsageAdjustment
from tenants.reconcile import tasks
from tenants.reconcile.rules import Check
from tenants.reconcile.selectors import RunView, latest
from tenants.reconcile.services import reconcile
from tests import factories
from tests.accounting import add_to_window, fields, set_expiry
from tests.ledgering import (
    Party,
    ScriptedGateway,
    Ticket,
    assert_exact,
    cycle,
    event_of,
    is_open,
    rows,
    running_writer,
    until,
)

pytestmark = pytest.mark.django_db(transaction=True)
OPERATOR = Actor(user_id=None, label="ola")


class DescribedGateway(ScriptedGateway):
    """Its holds say who they belong to, as a real gateway's do."""

    def info_of(self, party: Party, request_id: str, held: tuple[int, ...]) -> msgspec.Raw | str:
        ticket = Ticket(request_id, party, 0, [], self.now_ms())
        event = event_of(
            ticket,
            held_input_tokens=held[1],
            held_output_tokens=held[2],
            held_nanousd=held[3],
            legs=[],
        )
        return as_text(encode_hold_info(HoldInfo(event, Price(1, 1_000_000, 0, 2_000_000))))


@pytest.fixture
def gateway(store: redis.Redis) -> ScriptedGateway:
    cycle()
    return DescribedGateway(store)


def counts(run: RunView) -> dict[str, int]:
    assert not run.trouble
    return {line["check"]: line["count"] for line in run.lines if line["count"]}


def samples(run: RunView, check: Check) -> str:
    return " ".join(next(line["samples"] for line in run.lines if line["check"] == check))


def repair() -> RunView:
    return reconcile(is_repair=True, hours=2, actor=OPERATOR)


def check() -> RunView:
    return reconcile(hours=2)


def assert_repaired(run: RunView) -> None:
    assert counts(run) == {}
    cycle()  # what is numbered is applied
    assert counts(check()) == {}
    again = repair()
    assert (counts(again), again.acts) == ({}, [])


def add_spend(gateway: ScriptedGateway, name: str, nanousd: int) -> None:
    """As no script does it: the counter then says more than the ledger."""
    add_to_window(gateway.client, name, "usd", nanousd)


def day_counter(gateway: ScriptedGateway, ticket: Ticket) -> str:
    tag = keys.bucket_tag(ticket.party.bucket)
    return f"{tag}:{gateway.epoch(ticket.party)}:{ticket.legs[0][1]}"


def test_nothing_differs_at_quiet_and_with_requests_on_their_way(
    gateway: ScriptedGateway, party: Party
) -> None:
    gateway.serve(party)
    cycle()
    gateway.serve(party)  # settled, not booked
    gateway.reserve(party)  # running
    voided = gateway.reserve(party)
    gateway.settle(voided, SettleKind.VOID)
    run = check()
    assert (counts(run), run.is_clean, run.acts) == ({}, True, [])


def test_deleted_counter_is_named_and_restored(gateway: ScriptedGateway, party: Party) -> None:
    ticket = gateway.serve(party)
    cycle()
    gateway.serve(party)  # on its way: counted, and gone with the counter
    running = gateway.reserve(party)
    gateway.client.delete(day_counter(gateway, ticket))
    found = check()
    assert counts(found) == {
        Check.REQUESTS: 1,
        Check.INPUT: 1,
        Check.OUTPUT: 1,
        Check.SPEND: 1,
        Check.NO_END: 4,
    }
    assert f"{ticket.legs[0][1]} usd: 0, must be 600" in samples(found, Check.SPEND)
    assert_repaired(repair())
    gateway.settle(running)
    cycle()
    assert assert_exact(gateway, party)["usd"] == 900
    event = AuditEvent.objects.get(act="ledger.correct_counters")
    assert (event.actor_label, event.object_id) == ("ola", str(party.bucket))


def test_counter_above_the_ledger_is_lowered(gateway: ScriptedGateway, party: Party) -> None:
    ticket = gateway.serve(party)
    cycle()
    add_spend(gateway, day_counter(gateway, ticket), 5)
    assert counts(check()) == {Check.SPEND: 1}
    assert_repaired(repair())
    assert assert_exact(gateway, party)["usd"] == 300


def test_repair_asked_twice_before_it_is_applied_corrects_once(
    gateway: ScriptedGateway, party: Party
) -> None:
    ticket = gateway.serve(party)
    cycle()
    add_spend(gateway, day_counter(gateway, ticket), 5)
    assert len(repair().acts) == 1
    assert repair().acts == []
    cycle()
    assert assert_exact(gateway, party)["usd"] == 300


def test_stray_hold_is_swept_and_charged(gateway: ScriptedGateway, party: Party) -> None:
    stray = gateway.reserve(party)
    hold = keys.hold(party.bucket, stray.request_id)
    set_expiry(gateway.client, party.bucket, stray.request_id, gateway.now_ms() - 60_000)
    gateway.client.zrem(keys.bucket_leases(party.bucket), stray.request_id)
    found = check()
    assert counts(found) == {Check.NO_END: 1}
    assert f"{stray.request_id}: a hold without lease" in samples(found, Check.NO_END)
    run = repair()
    assert [act["check"] for act in run.acts] == [Check.NO_END, Check.OVERDUE]
    assert_repaired(run)
    assert not gateway.client.exists(hold)
    assert rows("SELECT kind, usage_source FROM tenants_usage") == [("w", "estimated")]
    sums = assert_exact(gateway, party)
    assert (sums["req"], sums["in"], sums["usd"]) == (1, 100, 100)


def test_hold_older_than_its_lease_is_named(gateway: ScriptedGateway, party: Party) -> None:
    old = gateway.reserve(party)
    then_ms = gateway.now_ms() - 60_000
    set_expiry(gateway.client, party.bucket, old.request_id, then_ms)
    found = check()
    assert counts(found) == {Check.OVERDUE: 1}
    assert old.request_id in samples(found, Check.OVERDUE)
    assert_repaired(repair())


def test_held_amount_that_no_hold_explains_is_released(
    gateway: ScriptedGateway, party: Party
) -> None:
    ticket = gateway.reserve(party)
    gateway.client.delete(keys.hold(party.bucket, ticket.request_id))
    gateway.client.zadd(keys.bucket_leases(party.bucket), {ticket.request_id: 1})
    found = check()
    # Four dimensions of the day, concurrency, and the lease itself.
    assert counts(found) == {Check.NO_END: 6}
    assert_repaired(repair())
    assert assert_exact(gateway, party)["req"] == 0
    gauges = list(gateway.client.scan_iter("{b*:g:*"))
    assert [fields(gateway.client, name)["conc_h"] for name in gauges] == [0]


def test_unreadable_hold_stays_and_says_why(store: redis.Redis, party: Party) -> None:
    cycle()
    gateway = ScriptedGateway(store)
    old = gateway.reserve(party)
    set_expiry(gateway.client, party.bucket, old.request_id, gateway.now_ms() - 60_000)
    run = repair()
    assert counts(run) == {Check.OVERDUE: 1}
    assert [act["is_done"] for act in run.acts] == [False]
    assert "cannot be read" in run.acts[0]["what"]


def park(gateway: ScriptedGateway, party: Party) -> Ticket:
    """The writer parks an entry because its project is not in the tables yet."""
    ticket = gateway.reserve(party)
    gateway.send(ticket, SettleKind.SETTLED, event_of(ticket, project_id="9000001"))
    cycle()
    assert DamagedEntry.objects.count() == 1
    return ticket


def test_parked_entry_is_booked_once_it_can_be(gateway: ScriptedGateway, party: Party) -> None:
    park(gateway, party)
    found = check()
    assert found.count > 1
    assert counts(found)[Check.PARKED] == 1  # and its charge is in the counters alone
    assert "unknown project 9000001" in samples(found, Check.PARKED)
    run = repair()
    assert counts(run) == {Check.PARKED: 1}
    assert not run.acts[0]["is_done"]
    assert "unknown project" in run.acts[0]["what"]
    Project.objects.create(pk=9_000_001, tenant_id=party.tenant_id, slug="late", name="Late")
    run = repair()
    assert run.acts[0]["is_done"]
    assert_repaired(run)
    assert assert_exact(gateway, party)["usd"] == 300


def test_damaged_entry_stays_parked_and_says_why(gateway: ScriptedGateway) -> None:
    name = keys.bucket_usage(3)
    gateway.client.xadd(name, {"id": "x", "k": "1", "t": "s", "e": "no event"})
    cycle()
    run = repair()
    assert counts(run) == {Check.PARKED: 1}
    assert "not readable" in run.acts[0]["what"]


def lose_row(ticket: Ticket) -> None:
    """What only damage can do: the table refuses deletes."""
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE tenants_usage DISABLE TRIGGER usage_append_only")
        cursor.execute("DELETE FROM tenants_usage WHERE request_id = %s", [ticket.request_id])
        cursor.execute("ALTER TABLE tenants_usage ENABLE TRIGGER usage_append_only")


def test_lost_row_keeps_its_charge_as_an_adjustment(gateway: ScriptedGateway, party: Party) -> None:
    lost = gateway.serve(party)
    gateway.serve(party)
    cycle()
    lose_row(lost)
    found = check()
    assert counts(found) == {Check.ROLLUPS: 1}
    assert "requests +1" in samples(found, Check.ROLLUPS)
    assert_repaired(repair())
    adjustment = UsageAdjustment.objects.get()
    assert (adjustment.reason, adjustment.spend_nanousd) == ("lost_row", 300)
    assert assert_exact(gateway, party)["usd"] == 600


def test_row_without_reservation_is_taken_back(gateway: ScriptedGateway, party: Party) -> None:
    ticket = gateway.reserve(party)
    gateway.settle(ticket, SettleKind.VOID)
    stranger = gateway.reserve(party)
    gateway.send(stranger, SettleKind.SETTLED, event_of(stranger, legs=[]))
    cycle()
    found = check()
    assert counts(found)[Check.NO_RESERVATION] == 1
    assert stranger.request_id in samples(found, Check.NO_RESERVATION)
    run = repair()
    assert_repaired(run)
    assert assert_exact(gateway, party)["usd"] == 0


def test_row_written_past_the_ledger_is_taken_back(gateway: ScriptedGateway, party: Party) -> None:
    gateway.serve(party)
    cycle()
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO tenants_usage SELECT (json_populate_record(u, json_build_object("
            "'request_id', overlay(request_id::text placing 'ffff' from 33), 'legs', '[]'::json))"
            ").* FROM tenants_usage u"
        )
    assert counts(check()) == {Check.NO_RESERVATION: 1, Check.ROLLUPS: 1}
    assert_repaired(repair())
    assert assert_exact(gateway, party)["usd"] == 300


def test_repair_under_traffic_miscounts_nothing(gateway: ScriptedGateway, party: Party) -> None:
    """Counters are deleted and raised, and repaired again and again, while requests run."""
    stop = threading.Event()
    served: list[Ticket] = []

    def traffic() -> None:
        client = redis.Redis.from_url(os.environ["REDIS_URL"])
        mine = DescribedGateway(client)
        while not stop.is_set():
            ticket = mine.reserve(party)
            mine.settle(ticket)
            served.append(ticket)
        client.close()

    with running_writer():
        until(lambda: is_open(gateway.client, party), what="open")
        first = gateway.serve(party)
        threads = [threading.Thread(target=traffic) for _ in range(2)]
        for thread in threads:
            thread.start()
        try:
            for turn in range(4):
                seen = len(served)
                until(lambda seen=seen: len(served) > seen + 50, what="traffic")
                assert counts(check()) == {}, "false alarm under traffic"
                if turn % 2:
                    add_spend(gateway, day_counter(gateway, first), 1_000_000)
                else:
                    gateway.client.delete(day_counter(gateway, first))
                run = repair()
                assert counts(run) == {}
                assert any(act["check"] in Check for act in run.acts)
        finally:
            stop.set()
            for thread in threads:
                thread.join()
        total = (len(served) + 1) * 300
        until(lambda: gateway.day_counters(party).get("usd") == total, what="quiet")
        until(lambda: rows("SELECT count(*) FROM tenants_usage") == [(len(served) + 1,)])
    assert assert_exact(gateway, party)["usd"] == total


def test_store_that_is_away_is_said(gateway: ScriptedGateway) -> None:
    run = reconcile(hours=2, store_url="redis://127.0.0.1:1/0")
    assert run.trouble
    assert not run.is_clean


def test_command_prints_and_exits_by_what_it_found(
    gateway: ScriptedGateway, party: Party, capsys: pytest.CaptureFixture[str]
) -> None:
    ticket = gateway.serve(party)
    cycle()
    call_command("reconcile", "--json")
    assert json.loads(capsys.readouterr().out)["is_clean"]
    add_spend(gateway, day_counter(gateway, ticket), 5)
    with pytest.raises(SystemExit):
        call_command("reconcile")
    assert "1  counters minus ledger: nano-dollars" in capsys.readouterr().out
    call_command("reconcile", "--repair", "--hours", "1")
    assert "done  bucket" in capsys.readouterr().out


def test_operator_asks_and_the_job_repairs(gateway: ScriptedGateway, party: Party) -> None:
    world = factories.World(tenants={"acme": party.tenant_id})
    factories.make_people(world)
    ticket = gateway.serve(party)
    cycle()
    add_spend(gateway, day_counter(gateway, ticket), 5)
    browser = Client()
    browser.force_login(world.people["ola"])
    assert browser.post("/reconciliation/run/", {"repair": "1"}).status_code == 302
    job = Job.objects.get(kind="reconcile_ledger")
    handler_of("reconcile_ledger")(job)  # type: ignore[misc, arg-type]
    run = latest()
    assert run is not None
    assert (run.is_repair, run.by, len(run.acts)) == (True, "ola", 1)
    assert AuditEvent.objects.filter(act="ledger.reconcile", actor_label="ola").exists()
    page = browser.get("/reconciliation/").content.decode()
    assert "corrected" in page
    answer = browser.get("/api/v1/reconciliation/").json()["latest"]
    assert (answer["count"], answer["by"]) == (0, "ola")
    assert tasks.JOB_KIND == "reconcile_ledger"
