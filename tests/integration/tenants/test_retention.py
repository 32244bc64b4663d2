"""Usage goes by whole days, only when settled; what is late for a dropped day is parked."""

import os
import subprocess
import sys
from datetime import UTC, date, datetime, time, timedelta
from typing import Any
from uuid import uuid4

import pytest
from django.utils import timezone

from routing.contracts.enums import SettleKind
from routing.contracts.ids import uuid7
from routing.store import keys
from tenants.ledger.retention import DAYS_AHEAD, drop_old, make_partitions, overdue_days
from tenants.models import DamagedEntry, Shape, Usage, UsageAdjustment, UsageRollup
from tests.ledgering import (
    Party,
    ScriptedGateway,
    Ticket,
    cycle,
    event_of,
    make_party,
    rollup_sums,
    rows,
)

pytestmark = pytest.mark.django_db(transaction=True)
KEPT = 40  # days, here


@pytest.fixture
def party(settings: Any) -> Party:
    settings.USAGE_DAYS_KEPT = 36
    drop_old()  # empty partitions that other tests left
    settings.USAGE_DAYS_KEPT = KEPT
    return make_party()


def partitions(table: str) -> set[str]:
    found = rows("SELECT relname FROM pg_class WHERE relname ~ %s", f"^{table}_[0-9]{{8}}$")
    return {name for (name,) in found}


def day_ago(days: int) -> date:
    return timezone.now().date() - timedelta(days=days)


def serve_on(gateway: ScriptedGateway, party: Party, day: date) -> Ticket:
    """A request whose id, and so its row, is of that day at noon."""
    at_ms = int(datetime.combine(day, time(12), UTC).timestamp() * 1000)
    ticket = Ticket(uuid7(at_ms, uuid4().int), party, gateway.epoch(party), [], at_ms)
    ticket.legs = [[1, f"w:{party.tenant_id}:tenant::d:{at_ms}", at_ms + 43_200_000, ["usd", 1]]]
    gateway.send(ticket, SettleKind.RECOVERED, event_of(ticket))
    return ticket


def test_old_days_go_whole_and_rollups_stay(
    gateway: ScriptedGateway, party: Party, settings: Any
) -> None:
    """Booked while young, then the retention is shorter than their age."""
    kept = serve_on(gateway, party, day_ago(10))
    serve_on(gateway, party, day_ago(39))
    cycle()
    assert Usage.objects.count() == 2
    assert drop_old()["usage_partitions"] == 0
    settings.USAGE_DAYS_KEPT = 36
    assert overdue_days() == [day_ago(39)]
    gone = drop_old()
    assert overdue_days() == []
    assert drop_old()["usage_partitions"] == 0
    assert (gone["usage_partitions"], gone["usage_kept"]) == (1, 0)
    assert {str(row.request_id) for row in Usage.objects.all()} == {kept.request_id}
    assert f"tenants_usage_{day_ago(39):%Y%m%d}" not in partitions("tenants_usage")
    assert rollup_sums(party, "d")["req"] == 2


def test_late_row_of_a_dropped_day_is_parked_and_brings_no_partition_back(
    gateway: ScriptedGateway, party: Party
) -> None:
    serve_on(gateway, party, day_ago(KEPT + 1))
    serve_on(gateway, party, day_ago(KEPT))
    cycle()
    assert Usage.objects.count() == 1
    assert "past the retention" in DamagedEntry.objects.get().reason
    assert f"tenants_usage_{day_ago(KEPT + 1):%Y%m%d}" not in partitions("tenants_usage")


def old_day(gateway: ScriptedGateway, party: Party, settings: Any) -> date:
    """A booked day, now past its time."""
    serve_on(gateway, party, day_ago(39))
    cycle()
    settings.USAGE_DAYS_KEPT = 36
    return day_ago(39)


def test_day_whose_rollups_differ_stays(
    gateway: ScriptedGateway, party: Party, settings: Any
) -> None:
    day = old_day(gateway, party, settings)
    UsageRollup.objects.filter(grain="d").update(spend_nanousd=299)
    assert drop_old()["usage_kept"] == 1
    assert overdue_days() == [day]
    assert Usage.objects.count() == 1
    UsageAdjustment.objects.create(
        request_id=Usage.objects.get().request_id,
        day=day,
        tenant_id=party.tenant_id,
        reason="agreed",
        spend_nanousd=-1,
    )
    assert drop_old()["usage_partitions"] == 1


def test_day_of_a_parked_entry_stays(gateway: ScriptedGateway, party: Party, settings: Any) -> None:
    day = old_day(gateway, party, settings)
    came_ms = int(datetime.combine(day, time(13), UTC).timestamp() * 1000)
    parked = DamagedEntry.objects.create(
        stream=keys.bucket_usage(3), entry_id=f"{came_ms}-0", reason="unknown key 7", raw=b""
    )
    assert drop_old()["usage_kept"] == 1
    assert Usage.objects.count() == 1
    parked.delete()
    assert drop_old()["usage_partitions"] == 1


def test_days_ahead_have_partitions(party: Party) -> None:
    make_partitions()
    make_partitions()
    for ahead in range(DAYS_AHEAD + 1):
        day = day_ago(-ahead)
        assert f"tenants_usage_{day:%Y%m%d}" in partitions("tenants_usage")
        assert f"tenants_shape_{day:%Y%m%d}" in partitions("tenants_shape")
    assert Shape.objects.count() == 0


def test_setting_shorter_than_a_budget_window_is_refused() -> None:
    environment = {**os.environ, "HEADRACE_USAGE_DAYS_KEPT": "35"}
    done = subprocess.run(
        [sys.executable, "-c", "import console.project.settings"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode
    assert "HEADRACE_USAGE_DAYS_KEPT lies between 36" in done.stderr
