"""Corrections of charges by people: in rows, rollups, counters and the audit, each once."""

from datetime import date
from uuid import uuid4

import pytest

from console.audit.rules import Actor
from console.errors import Conflict, InvalidInput, NotFound
from console.models import AuditEvent
from routing.contracts.ids import day_of
from tenants.ledger import selectors
from tenants.ledger.services import adjust
from tenants.models import UsageAdjustment
from tests.ledgering import (
    Party,
    ScriptedGateway,
    Ticket,
    assert_exact,
    cycle,
    rows,
)

pytestmark = pytest.mark.django_db(transaction=True)
OPERATOR = Actor(user_id=None, label="ada")


def take_back(ticket: Ticket, amount: int, reason: str = "wrong price") -> int:
    return adjust(
        request_id=ticket.request_id,
        day=day_of(ticket.request_id),
        reason=reason,
        spend_nanousd=amount,
        note="a typo in the price",
        actor=OPERATOR,
    )


def test_adjustment_reaches_row_rollups_counter_and_audit(
    gateway: ScriptedGateway, party: Party
) -> None:
    ticket = gateway.serve(party, spend_nanousd=9_000_000)
    cycle()
    take_back(ticket, -8_000_000)
    cycle()
    assert rows("SELECT spend_nanousd FROM tenants_usage") == [(9_000_000,)]
    assert assert_exact(gateway, party)["usd"] == 1_000_000
    event = AuditEvent.objects.get(act="usage_adjusted")
    assert (event.actor_label, event.object_id) == ("ada", ticket.request_id)
    assert event.tenant_id == party.tenant_id
    line = selectors.usage_line(tenant_ids=None, request_id=ticket.request_id)
    assert line is not None
    assert (line.spend_nanousd, line.net_nanousd) == (9_000_000, 1_000_000)


def test_adjustment_survives_a_lost_store(
    gateway: ScriptedGateway, party: Party, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tenants.ledger.writer import rebuild

    monkeypatch.setattr(rebuild, "REGISTER_WAIT_MS", 0)
    ticket = gateway.serve(party)
    cycle()
    gateway.client.flushall()
    take_back(ticket, -100)  # written while nobody has noticed
    cycle()
    assert assert_exact(gateway, party)["usd"] == 200


def test_adjustment_is_refused_twice_for_one_reason(gateway: ScriptedGateway, party: Party) -> None:
    ticket = gateway.serve(party)
    cycle()
    take_back(ticket, -100)
    with pytest.raises(Conflict):
        take_back(ticket, -100)
    take_back(ticket, -100, reason="goodwill")
    cycle()
    assert assert_exact(gateway, party)["usd"] == 100


def test_request_never_costs_less_than_nothing(gateway: ScriptedGateway, party: Party) -> None:
    ticket = gateway.serve(party)
    cycle()
    take_back(ticket, -200)
    with pytest.raises(InvalidInput) as refused:
        take_back(ticket, -101, reason="more")
    assert refused.value.field == "spend_nanousd"
    assert refused.value.hint == "At most 0.0000001 USD can be taken back."
    assert UsageAdjustment.objects.count() == 1


@pytest.mark.parametrize("reason", ["", "late", "x" * 65])
def test_reason_must_be_the_operators_own(
    gateway: ScriptedGateway, party: Party, reason: str
) -> None:
    ticket = gateway.serve(party)
    cycle()
    with pytest.raises(InvalidInput):
        take_back(ticket, -1, reason=reason)
    assert not AuditEvent.objects.exists()


def test_unknown_request_is_not_found(gateway: ScriptedGateway, party: Party) -> None:
    for request_id in (str(uuid4()), "nonsense", "x" * 36):
        with pytest.raises(NotFound):
            adjust(
                request_id=request_id,
                day=date(2026, 1, 1),
                reason="r",
                spend_nanousd=1,
                note="",
                actor=OPERATOR,
            )


def test_adjustments_are_paged_newest_first(gateway: ScriptedGateway, party: Party) -> None:
    tickets = [gateway.serve(party) for _ in range(3)]
    cycle()
    ids = [take_back(ticket, -1) for ticket in tickets]
    scope = frozenset({party.tenant_id})
    first = selectors.adjustments_page(tenant_ids=scope, after=None, limit=2)
    rest = selectors.adjustments_page(tenant_ids=scope, after=first.next_after, limit=2)
    assert [line.id for line in (*first.rows, *rest.rows)] == ids[::-1]
    assert selectors.adjustments_page(tenant_ids=frozenset(), after=None, limit=2).rows == ()
    one = selectors.adjustments_page(
        tenant_ids=scope, after=None, limit=9, request_id=tickets[0].request_id
    )
    assert [line.id for line in one.rows] == ids[:1]
