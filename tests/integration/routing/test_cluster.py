"""Gateways on a cluster that loses masters and moves slots: only the buckets concerned notice."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from routing.contracts.capacity import CapacityLimit, CapacityScope
from routing.contracts.enums import Dimension, StoreMode
from routing.contracts.snapshot import OutagePolicy, TenantEntry
from routing.decision.types import Hold, Reason, Refusal
from routing.gateway.credits import Credits
from routing.store import keys
from routing.store.address import (
    BUCKET_SLOTS,
    AddressError,
    ClusterAddress,
    cluster_of,
    slot_of,
)
from routing.store.pooled import sync_client
from tests.accounting import counter, entries, gateway, open_bucket, tenant, until
from tests.clustering import Cluster, running_cluster
from tests.stack import api_key, launch_gateway, make_snapshot, policy, pool, publish, wait_until
from tests.stack import tenant as entry_of
from tests.upstream import UpstreamThread, answer, json_script

pytestmark = pytest.mark.anyio
CLOSED = OutagePolicy(store_away="closed")


@pytest.fixture
def broken() -> Iterator[Cluster]:
    """A cluster that this test may break."""
    with running_cluster() as found:
        yield found


def one_of_each(cluster: Cluster) -> list[TenantEntry]:
    """A tenant on every master, in the masters' order; its bucket is open."""
    found: dict[int, TenantEntry] = {}
    number = 0
    while len(found) < len(cluster.masters):
        one = tenant(slug=f"t{number}")
        number += 1
        found.setdefault(cluster.master_of(one.bucket).port, one)
    ordered = [found[master.port] for master in cluster.masters]
    client = sync_client(cluster.url)
    for one in ordered:
        open_bucket(client, one.bucket)
    client.close()
    return ordered


async def test_lost_master_closes_its_own_buckets_only(broken: Cluster, tmp_path: Path):
    tenants = one_of_each(broken)
    async with gateway(broken.url, tmp_path) as one:
        one.outage = CLOSED
        holds = [await one.reserve(who) for who in tenants]
        assert all(isinstance(hold, Hold) for hold in holds)
        broken.masters[2].kill()
        await until(lambda: not one.store.serves(tenants[2].bucket), what="the loss is seen")
        for who, hold in zip(tenants[:2], holds[:2], strict=True):
            assert isinstance(await one.reserve(who), Hold)
            one.end(hold)
            client = broken.master_of(who.bucket).client
            await until(lambda c=client, w=who: len(entries(c, w.bucket)) == 1, what="settled")
        refused = await one.reserve(tenants[2])
        assert isinstance(refused, Refusal)
        assert refused.reason is Reason.NO_CAPACITY
        one.end(holds[2])

        broken.masters[2].start()
        await until(lambda: one.store.serves(tenants[2].bucket), 20, "it is back")
        client, bucket = broken.masters[2].client, tenants[2].bucket
        again = await one.reserve(tenants[2])
        assert isinstance(again, Refusal), "a restarted master is a lost store"
        await until(broken.is_whole, 20, "the cluster is whole")
        open_bucket(client, bucket, epoch=2)
        await until(lambda: len(entries(client, bucket)) == 1, what="settled after registration")
        assert isinstance(await one.reserve(tenants[2]), Hold)


async def test_bucket_that_moved_is_admitted_again_only_in_a_new_epoch(
    broken: Cluster, tmp_path: Path
):
    who = one_of_each(broken)[0]
    source, target = broken.masters[:2]
    async with gateway(broken.url, tmp_path) as one:
        one.outage = CLOSED
        hold = await one.reserve(who)
        old_run_id = one.store.run_id_of(who.bucket)
        broken.move(BUCKET_SLOTS[who.bucket], source, target)
        # Its first request after the move is redirected or meets the old run id: never admitted.
        assert isinstance(await one.reserve(who), Refusal)
        await until(lambda: one.store.run_id_of(who.bucket) != old_run_id, what="known")
        assert isinstance(await one.reserve(who), Refusal)
        open_bucket(target.client, who.bucket, epoch=2)
        await until(lambda: one.accountant.book.buckets[who.bucket].epoch == 2, what="new epoch")
        one.end(hold, 500)
        await until(lambda: len(entries(target.client, who.bucket)) == 1, what="settled there")
        assert counter(target.client, who.bucket, ":w:", "usd") == 500
        assert isinstance(await one.reserve(who), Hold)


async def test_plain_commands_follow_a_slot_that_moved(broken: Cluster, tmp_path: Path):
    source, target = broken.masters[:2]
    name = next(n for n in map(str, range(1000)) if slot_of(n.encode()) in source.slots)
    async with gateway(broken.url, tmp_path) as one:
        await one.store.call("SET", name, "kept")
        broken.move(slot_of(name.encode()), source, target)
        assert await one.store.call("GET", name) == b"kept"


def test_gateway_process_serves_on_while_one_master_is_away(broken: Cluster, tmp_path: Path):
    tenants = one_of_each(broken)
    with UpstreamThread(json_script(answer())) as upstream:
        snapshot = make_snapshot(
            [upstream.address],
            policy=policy(outage=OutagePolicy(store_away="closed")),
            tenants={who.id: entry_of(who.id) for who in tenants},
            keys=dict(api_key(who.id, f"hr_key_{who.id}") for who in tenants),
        )
        client = sync_client(broken.url)
        publish(client, snapshot)
        one = launch_gateway(broken.url, tmp_path / "state")
        try:
            wait_until(one.is_ready, 15, "ready")
            secrets = [f"hr_key_{who.id}" for who in tenants]
            assert [one.chat(secret).status_code for secret in secrets] == [200, 200, 200]
            broken.masters[2].kill()
            wait_until(lambda: one.chat(secrets[2]).status_code == 503, 5, "its tenant is refused")
            for _ in range(3):
                assert [one.chat(secret).status_code for secret in secrets] == [200, 200, 503]
            assert one.is_ready(), "two thirds of the tenants are served"
        finally:
            one.process.kill()
            one.process.wait(10)
            client.close()


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("redis://h:1/0", None),
        ("redis+cluster://a:1,b", ClusterAddress((("a", 1), ("b", 6379)))),
        (
            "rediss+cluster://u:p%40ss@[::1]:7,b:8/0",
            ClusterAddress((("::1", 7), ("b", 8)), "rediss", "u", "p@ss"),
        ),
    ],
)
def test_url_names_one_server_or_a_cluster(url: str, expected: ClusterAddress | None):
    assert cluster_of(url) == expected


@pytest.mark.parametrize("url", ["redis+cluster://", "redis+cluster://a:x", "redis+cluster://a:1,"])
def test_cluster_without_usable_nodes_is_refused_by_name(url: str):
    with pytest.raises(AddressError, match="REDIS_URL"):
        cluster_of(url)


def test_node_url_keeps_credentials_and_brackets():
    address = ClusterAddress((("a", 1),), "rediss", "u", "p@ss")
    assert address.url_of(("::1", 7)) == "rediss://u:p%40ss@[::1]:7"


def test_slots_are_those_of_the_server(cluster: Cluster):
    client = cluster.masters[0].client
    for name in ("a", "foo{bar}baz", "foo{}{bar}", "{b17}:meta", "x{y", "hr:{snapshot}:number"):
        assert slot_of(name.encode()) == client.execute_command("CLUSTER", "KEYSLOT", name)


async def test_partial_store_is_told_and_mode_is_that_of_the_worst_bucket(
    broken: Cluster, tmp_path: Path
):
    tenants = one_of_each(broken)
    async with gateway(broken.url, tmp_path) as one:
        for who in tenants:
            one.end(await one.reserve(who))
        assert one.reserver.mode(CLOSED) is StoreMode.SHARED
        broken.masters[1].kill()
        await until(lambda: one.store.is_split)
        assert one.store.is_ready
        assert one.reserver.mode(CLOSED) is StoreMode.CLOSED


async def test_credits_of_each_pool_lie_with_the_master_of_their_own_slot(
    cluster: Cluster, tmp_path: Path
):
    bound = (CapacityLimit(Dimension.CONCURRENCY, 20),)
    pools = {f"p{n}": msgspec.structs.replace(pool(f"p{n}", []), limits=bound) for n in range(6)}
    snapshot = make_snapshot([], pools=pools, fleet_limits=bound)
    names = [(CapacityScope.POOL, name) for name in pools] + [(CapacityScope.FLEET, "")]
    client = sync_client(cluster.url)
    async with gateway(cluster.url, tmp_path) as one:
        book = Credits(one.store, "g0:1", lambda: client.time()[0] * 1000, lambda: 0.0)
        book.take_snapshot(snapshot)
        keeping = asyncio.get_running_loop().create_task(book.keep())
        await until(
            lambda: [client.hlen(keys.credits_of(*name)) for name in names] == [1] * 7,
            what="leased everywhere",
        )
        keeping.cancel()
        await book.give_back()
        assert not any(client.exists(keys.credits_of(*name)) for name in names)
    client.close()
