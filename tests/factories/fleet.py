"""Pools with their prices and rollouts."""

from datetime import timedelta

from django.utils import timezone

from capacity.fleet.services import create_domain, create_model, create_pool, create_region
from capacity.models import Pool, Replica, Rollout
from capacity.rollouts.rules.judging import Bar, judge
from capacity.rollouts.services import acts, machine
from capacity.rollouts.services.judging import note_judgement
from capacity.rollouts.services.steps import open_lane
from telemetry.stats.sketch import index_of
from telemetry.stats.tries import Tries
from tenants.prices.services import add_pool_price, add_price, add_resource_price
from tenants.quotas.services import set_limit
from tests.factories.world import ACTOR, World


def make_fleet(world: World, pools: dict[str, int], model: str = "llama-8b") -> None:
    """A priced model, a region, and pools with that many ready replicas."""
    create_model(name=model, context_tokens=16_384, bytes_per_token=3.0, actor=ACTOR)
    create_region(slug="eu", name="Europe", actor=ACTOR)
    create_domain(region="eu", slug="eu-a", actor=ACTOR)
    add_price(
        model=model,
        input_nanousd=600_000_000,
        cached_nanousd=60_000_000,
        output_nanousd=2_400_000_000,
        actor=ACTOR,
    )
    make_pools(world, pools, model)


def make_pools(world: World, pools: dict[str, int], model: str = "llama-8b") -> None:
    """Pools with that many ready replicas."""
    now = timezone.now()
    for at, (name, count) in enumerate(pools.items()):
        pool_id = create_pool(
            name=name,
            model=model,
            driver="simulated",
            region="eu",
            domain="eu-a",
            hardware="sim-h200",
            spec={"profile": "demo"},
            desired_replicas=count,
            actor=ACTOR,
        )
        world.pools.append(name)
        Replica.objects.filter(pool_id=pool_id).delete()
        Replica.objects.bulk_create(
            Replica(
                pool=Pool.objects.get(pk=pool_id),
                name=f"{name}-{ordinal}",
                ordinal=ordinal,
                host="127.0.0.1",
                port=30_000 + 100 * at + ordinal,
                lifecycle="ready",
                lifecycle_since=now - timedelta(minutes=7 * (ordinal + 1)),
            )
            for ordinal in range(count)
        )


def make_single_prices(world: World, pool: str, count: int) -> None:
    """Prices of resources and of a pool's GPU-seconds, and a limit on each resource of acme."""
    for _ in range(count):
        version = add_resource_price(resource="db:orders", unit_nanousd=2_000, actor=ACTOR)
        add_pool_price(pool=pool, gpu_second_nanousd=694_445, actor=ACTOR)
        set_limit(
            tenant_id=world.tenants["acme"],
            scope="resource",
            resource=f"tool:t{version}",
            dimension="req",
            window="m",
            amount=10,
            actor=ACTOR,
        )


def make_rollout(world: World, pool: str, *, reason: str = "a newer build") -> int:
    """A rollout of a pool with one lane under way, judged as far as it goes; its id."""
    rollout_id = acts.start(pool=pool, plan=acts.Plan(reason=reason), actor=ACTOR)
    machine.advance_once(rollout_id)
    machine.advance_once(rollout_id)
    sides = Tries(31, 1, {9: {index_of(0.21): 30}}), Tries(240, 0, {9: {index_of(0.18): 240}})
    found = judge((sides[0], sides[0]), (sides[1], sides[1]), Bar())
    note_judgement(open_lane(Rollout.objects.get(pk=rollout_id)), found)
    world.rollouts.append(rollout_id)
    return rollout_id
