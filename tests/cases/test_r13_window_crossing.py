"""R13: a request that crosses a reset is counted in the window it started in."""

import pytest
import redis

from routing.contracts.enums import Dimension, LimitScope, SettleKind, WindowKind
from routing.decision.limits import Group
from routing.store import keys
from tenants.models import WindowUsage
from tests.accounting import fields
from tests.ledgering import (
    ScriptedGateway,
    Ticket,
    cycle,
    event_of,
    ledger_sums,
    make_party,
    rollup_sums,
    rows,
    until,
)

pytestmark = pytest.mark.django_db(transaction=True)

DAY_MS = 86_400_000
SPEND = (
    Group(
        LimitScope.TENANT,
        WindowKind.MINUTE,
        "",
        ((Dimension.REQUESTS, -1), (Dimension.SPEND_NANOUSD, -1)),
    ),
)


def window(gateway: ScriptedGateway, ticket: Ticket) -> dict[str, int]:
    tag = keys.bucket_tag(ticket.party.bucket)
    epoch = gateway.epoch(ticket.party)
    found = fields(gateway.client, f"{tag}:{epoch}:{ticket.legs[0][1]}")
    return {name: found[name] for name in ("req", "req_h", "usd", "usd_h")}


def test_late_end_is_charged_to_the_window_of_the_reservation(store: redis.Redis) -> None:
    """A window of 300 ms ends by the store's own clock between the two reservations."""
    cycle()
    gateway, party = ScriptedGateway(store, groups=SPEND), make_party()
    start_ms = gateway.now_ms()
    end_ms = start_ms + 300
    gateway.edges = ((start_ms, end_ms, end_ms + 60_000),)
    first = gateway.reserve(party, (1, 9, 9, 5_000_000, 1, 0))
    until(lambda: gateway.now_ms() > end_ms, what="the reset")
    second = gateway.reserve(party, (1, 9, 9, 5_000_000, 1, 0))
    assert first.legs[0][2] == end_ms == int(str(second.legs[0][1]).rpartition(":")[2])
    assert window(gateway, second)["usd_h"] == 5_000_000
    gateway.settle(first, spend_nanousd=2_000_000)  # ends after the reset
    gateway.settle(second, spend_nanousd=1_000_000)
    cycle()
    assert window(gateway, first) == {"req": 1, "req_h": 0, "usd": 2_000_000, "usd_h": 0}
    assert window(gateway, second) == {"req": 1, "req_h": 0, "usd": 1_000_000, "usd_h": 0}
    assert ledger_sums(party)["usd"] == 3_000_000
    assert dict(WindowUsage.objects.values_list("suffix", "spend_nanousd")) == {
        first.legs[0][1]: 2_000_000,
        second.legs[0][1]: 1_000_000,
    }
    assert gateway.min_counter() == 0


def test_late_row_lands_in_the_rollups_of_its_start(store: redis.Redis) -> None:
    cycle()
    gateway, party = ScriptedGateway(store), make_party()
    ticket = gateway.reserve(party)
    started_at_ms = ticket.at_ms - ticket.at_ms % DAY_MS - 1_000  # a second before midnight, UTC
    event = event_of(ticket, started_at_ms=started_at_ms, ended_at_ms=started_at_ms + 6_000)
    gateway.send(ticket, SettleKind.SETTLED, event)
    cycle()
    starts = dict(
        rows("SELECT grain, (extract(epoch FROM start_at) * 1000)::bigint FROM tenants_usagerollup")
    )
    assert starts == {
        "m": started_at_ms - started_at_ms % 60_000,
        "h": started_at_ms - started_at_ms % 3_600_000,
        "d": started_at_ms - started_at_ms % DAY_MS,
    }


def test_lifetime_total_survives_the_reset_and_the_retention_job(store: redis.Redis) -> None:
    from tenants.ledger.retention import drop_old

    cycle()
    gateway, party = ScriptedGateway(store), make_party()
    gateway.serve(party, spend_nanousd=1_000_000)
    cycle()
    drop_old()
    drop_old()
    assert gateway.day_counters(party)["usd"] == 1_000_000
    assert ledger_sums(party)["usd"] == rollup_sums(party, "d")["usd"] == 1_000_000
