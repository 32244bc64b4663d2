"""A task's sums are those of its rows, whatever is sent again, corrected or reported twice."""

from datetime import UTC, datetime, timedelta

import pytest
from django.utils import timezone

from console.audit.rules import Actor
from routing.contracts.enums import RequestStatus, SettleKind
from routing.contracts.ids import day_of
from tenants.ledger.retention import drop_old
from tenants.ledger.services import adjust
from tenants.models import WorkTask
from tests.ledgering import Party, ScriptedGateway, cycle, make_party, rows

pytestmark = pytest.mark.django_db(transaction=True)

# Straight from the rows and their adjustments; nothing of the product takes part.
TRUTH = """
SELECT count(*) FILTER (WHERE kind <> 'v'), coalesce(sum(input_tokens), 0),
  coalesce(sum(output_tokens), 0), coalesce(sum(spend_nanousd), 0)
    + coalesce((SELECT sum(a.spend_nanousd) FROM tenants_usageadjustment a JOIN tenants_usage u
      USING (request_id) WHERE u.task_id = %s AND u.tenant_id = %s), 0)
FROM tenants_usage WHERE task_id = %s AND tenant_id = %s
"""
SUMS = """
SELECT sum(p.requests), sum(p.input_tokens), sum(p.output_tokens), sum(p.spend_nanousd)
FROM tenants_worktaskpart p JOIN tenants_worktask t ON t.id = p.task_id
WHERE t.task = %s AND t.tenant_id = %s
"""


def assert_task_equals_rows(party: Party, task: str) -> tuple[int, ...]:
    (truth,) = rows(TRUTH, task, party.tenant_id, task, party.tenant_id)
    (sums,) = rows(SUMS, task, party.tenant_id)
    assert tuple(map(int, sums)) == tuple(map(int, truth))
    return tuple(map(int, truth))


def test_steps_and_resources_join_one_task(gateway: ScriptedGateway, party: Party) -> None:
    gateway.serve(party, task_id="t-1", task_kind="triage", step="1/3", session="s-9")
    gateway.serve(party, task_id="t-1", step="2/3", parent_id="t-0", spend_nanousd=900)
    gateway.serve(
        party, task_id="t-1", step="3/3", model="resource:db", pool="", input_tokens=0,
        cached_tokens=0, output_tokens=0, spend_nanousd=50, status=RequestStatus.FAILED,
    )  # fmt: skip
    gateway.serve(party, task_id="t-2", spend_nanousd=7)
    gateway.serve(party, spend_nanousd=1_000)
    cycle()
    assert assert_task_equals_rows(party, "t-1") == (3, 20, 10, 300 + 900 + 50)
    assert assert_task_equals_rows(party, "t-2")[3] == 7
    task = WorkTask.objects.get(task="t-1")
    assert (task.kind, task.parent, task.session) == ("triage", "t-0", "s-9")
    parts = {part.model: part for part in task.parts.all()}
    assert (parts["resource:db"].spend_nanousd, parts["resource:db"].failed) == (50, 1)
    assert WorkTask.objects.count() == 2
    assert rows("SELECT session, parent_id FROM tenants_usage WHERE step = '2/3'") == [("", "t-0")]


def test_tenants_do_not_share_a_name(gateway: ScriptedGateway, party: Party) -> None:
    other = make_party("globex")
    gateway.serve(party, task_id="t-1", spend_nanousd=3)
    gateway.serve(other, task_id="t-1", spend_nanousd=5)
    cycle()
    assert assert_task_equals_rows(party, "t-1")[3] == 3
    assert assert_task_equals_rows(other, "t-1")[3] == 5


def test_what_is_sent_again_counts_once(gateway: ScriptedGateway, party: Party) -> None:
    ticket = gateway.serve(party, task_id="t-1")
    cycle()
    gateway.settle(ticket, task_id="t-1")
    cycle()
    assert assert_task_equals_rows(party, "t-1")[0] == 1


def test_corrections_reach_the_task(gateway: ScriptedGateway, party: Party) -> None:
    ticket = gateway.reserve(party)
    gateway.settle(ticket, SettleKind.RECOVERED, task_id="t-1", spend_nanousd=800)
    cycle()
    gateway.settle(ticket, task_id="t-1", spend_nanousd=300)  # the exact end comes late
    cycle()
    assert assert_task_equals_rows(party, "t-1")[3] == 300
    adjust(
        request_id=ticket.request_id,
        day=day_of(ticket.request_id),
        reason="goodwill",
        spend_nanousd=-100,
        note="",
        actor=Actor(None, "test"),
    )
    assert assert_task_equals_rows(party, "t-1")[3] == 200


def test_the_first_outcome_stands(gateway: ScriptedGateway, party: Party) -> None:
    gateway.serve(party, task_id="t-1", task_outcome="failure", task_score=0.25)
    gateway.serve(party, task_id="t-1", task_outcome="success", task_score=1.0)
    cycle()
    gateway.serve(party, task_id="t-1", task_outcome="success")
    gateway.serve(party, task_id="t-2", task_outcome="splendid")
    cycle()
    task = WorkTask.objects.get(task="t-1")
    assert (task.outcome, task.score_ratio, task.outcome_source) == ("failure", 0.25, "header")
    assert task.outcome_at is not None
    assert WorkTask.objects.get(task="t-2").outcome == ""


def test_old_tasks_go_with_their_rows(gateway: ScriptedGateway, party: Party) -> None:
    gateway.serve(party, task_id="t-1")
    gateway.serve(party, task_id="t-2")
    cycle()
    WorkTask.objects.filter(task="t-1").update(last_at=datetime(2001, 1, 1, tzinfo=UTC))
    assert drop_old()["tasks"] == 1
    left = WorkTask.objects.get()
    assert left.task == "t-2"
    assert left.last_at > timezone.now() - timedelta(minutes=5)
