"""The ledger over a cluster: a writer for each master, and buckets that change their master."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from routing.store import keys
from routing.store.address import BUCKET_SLOTS
from tenants.ledger.writer import rebuild as rebuilding
from tenants.ledger.writer.lanes import Lanes
from tenants.models import LedgerBucket
from tests.clustering import Cluster, running_cluster
from tests.ledgering import (
    Party,
    ScriptedGateway,
    assert_exact,
    is_open,
    make_party,
    row_count,
    until,
)
from tests.reconciling import reconcile

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    # Nobody has to register here: do not wait the full 6 s for them.
    monkeypatch.setattr(rebuilding, "REGISTER_WAIT_MS", 30)
    with running_cluster() as found:
        yield found


@contextmanager
def running_lanes(url: str) -> Iterator[Lanes]:
    stop = threading.Event()
    lanes = Lanes(url, stop)
    thread = threading.Thread(target=lanes.run, daemon=True)
    thread.start()
    try:
        yield lanes
    finally:
        stop.set()
        thread.join(timeout=40)
        assert not thread.is_alive()


def one_of_each(cluster: Cluster) -> list[tuple[Party, ScriptedGateway]]:
    """A party on every master, with a gateway that speaks to that master."""
    found: dict[int, tuple[Party, ScriptedGateway]] = {}
    number = 0
    while len(found) < len(cluster.masters):
        party = make_party(f"tenant-{number}")
        number += 1
        master = cluster.master_of(party.bucket)
        found.setdefault(master.port, (party, ScriptedGateway(master.client)))
    return [found[master.port] for master in cluster.masters]


def wait_open(gateway: ScriptedGateway, party: Party, epoch: int) -> None:
    until(lambda: is_open(gateway.client, party, epoch), what=f"epoch {epoch} of {party.bucket}")


def is_booked(gateway: ScriptedGateway, party: Party) -> bool:
    last = gateway.client.xrevrange(keys.bucket_usage(party.bucket), count=1)
    return bool(last) and LedgerBucket.objects.get(pk=party.bucket).pos == last[0][0].decode()


def test_every_master_is_booked_and_a_dead_one_stops_no_other(cluster: Cluster) -> None:
    sides = one_of_each(cluster)
    with running_lanes(cluster.url) as lanes:
        for party, gateway in sides:
            wait_open(gateway, party, 1)
            gateway.serve(party, spend_nanousd=100)
        until(lambda: row_count() == 3, what="a row of each master")
        for party, gateway in sides:
            until(lambda g=gateway, p=party: is_booked(g, p))
            assert assert_exact(gateway, party)["usd"] == 100
            assert reconcile(tenant_id=party.tenant_id, store_url=cluster.url).is_clean

        dead = cluster.masters[2]
        dead.kill()
        for party, gateway in sides[:2]:
            gateway.serve(party, spend_nanousd=23)
        until(lambda: row_count() == 5, 8, "rows of the two that live")
        until(lambda: "store" in lanes.progress().trouble, what="the missing master is told")

        dead.start()
        until(cluster.is_whole, what="the cluster is whole again")
        party, gateway = sides[2]
        wait_open(gateway, party, 2)
        assert gateway.day_counters(party)["usd"] == 100
        gateway.serve(party, spend_nanousd=1)
        until(lambda: row_count() == 6, what="the third master's new row")
        until(lambda: is_booked(gateway, party))
        assert assert_exact(gateway, party)["usd"] == 101


def test_bucket_that_moves_to_another_master_is_filled_from_the_ledger(cluster: Cluster) -> None:
    (party, gateway), *_ = one_of_each(cluster)
    target = cluster.masters[1]
    with running_lanes(cluster.url):
        wait_open(gateway, party, 1)
        gateway.serve(party, spend_nanousd=100)
        running = gateway.reserve(party)
        until(lambda: row_count() == 1, what="booked")
        cluster.move(BUCKET_SLOTS[party.bucket], cluster.masters[0], target)
        moved = ScriptedGateway(target.client)
        wait_open(moved, party, 2)
        assert moved.day_counters(party)["usd"] == 100
        assert moved.day_counters(party)["req_h"] == 1, "its hold moved with it"
        moved.settle(running, spend_nanousd=11)
        until(lambda: row_count() == 2, what="settled at the new master")
        until(lambda: is_booked(moved, party))
        assert assert_exact(moved, party)["usd"] == 111
