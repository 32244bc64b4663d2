"""The demo's world: two tenants with keys and limits, a price book, two regions, simulated pools.

Every step goes through the same services as the console, so it is audited and checked alike. Safe
to run twice: what exists is left as it is.
"""

import contextlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from django.utils import timezone

from capacity.fleet.services import create_domain, create_model, create_pool, create_region
from capacity.forecasts.imports import import_table
from capacity.forecasts.services import ask_run
from capacity.playbooks.services import ensure_shipped, set_mode
from console.audit.rules import Actor
from console.demo.pools import POOLS
from console.errors import DomainError, NotFound
from routing.contracts.enums import Dimension, LimitScope, WindowKind
from routing.policies.selectors import live
from routing.policies.services import publish, push_snapshot
from telemetry.economics.services import state_grid, state_power
from telemetry.slos.services import set_objective
from tenants.directory.selectors import tenant_by_slug
from tenants.directory.services import create_tenant
from tenants.keys.services import issue_key
from tenants.prices.selectors import price_in_force
from tenants.prices.services import add_price
from tenants.quotas.services import set_limit

ACTOR = Actor(user_id=None, label="demo seed")
CONTEXT_TOKENS = 16_384
# Small on purpose: with 24,576 KV tokens a replica, one tenant's 12k prompts are seen to fill it.
ENGINE = {"profile": "demo", "kv_blocks": 1536, "max_model_len": CONTEXT_TOKENS}
MODELS = ("llama-8b", "qwen-32b")
USD = 10**9
PRICES_NANOUSD = {
    "llama-8b": (USD, USD // 10, 2 * USD),
    "qwen-32b": (3 * USD, USD * 3 // 10, 6 * USD),
}
DEMAND = Path(__file__).parent / "data" / "servegen_9_days.csv"
POLICY = "main"
DOCUMENT: dict[str, object] = {
    "schema_version": 1,
    "name": POLICY,
    "note": "Demo: the 8B model from two regions, the 32B model from one.",
    "models": {
        "llama-8b": {
            "aliases": ["fast"],
            "targets": [{"pool": "eu-a-8b"}, {"pool": "us-b-8b"}],
        },
        "qwen-32b": {"aliases": ["smart"], "targets": [{"pool": "eu-a-32b"}]},
    },
}


def seed_demo(credentials: dict[str, Any]) -> dict[str, Any]:
    """Make the demo's rows; returns what to add to the credentials file.

    `credentials` is the file as it stands: a state that has demo keys already keeps them.
    """
    if "demo_callers" in credentials:
        return {}
    _fleet()
    callers = [
        _tenant("acme", "Acme Support", "Europe/Berlin", _acme_limits),
        _tenant("globex", "Globex Research", "America/New_York", _globex_limits),
    ]
    _prices()
    _promises()
    if live(POLICY) is None:
        publish(policy=POLICY, document=DOCUMENT, base=None, note="demo policy", actor=ACTOR)
    ensure_shipped()
    for playbook in ("noisy-tenant", "capacity-lost"):
        set_mode(name=playbook, mode="armed", actor=ACTOR, reason="demo")
    push_snapshot()
    _demand_elsewhere()
    return {"demo_callers": callers}


def _demand_elsewhere() -> None:
    """Nine real days, so that forecasts have something to be right or wrong about at once."""
    with DEMAND.open(newline="", encoding="utf-8") as lines:
        import_table(source="servegen", lines=lines, actor=ACTOR)
    ask_run(actor=ACTOR)


def _fleet() -> None:
    for region, name in (("eu", "Europe"), ("us", "United States")):
        once(partial(create_region, slug=region, name=name, actor=ACTOR))
    for region, domain in (("eu", "eu-a"), ("us", "us-b")):
        once(partial(create_domain, region=region, slug=domain, actor=ACTOR))
    for model in MODELS:
        once(
            partial(
                create_model,
                name=model,
                context_tokens=CONTEXT_TOKENS,
                bytes_per_token=3.0,
                actor=ACTOR,
            )
        )
    for pool, model, region, domain, replicas in POOLS:
        once(
            partial(
                create_pool,
                name=pool,
                model=model,
                driver="simulated",
                region=region,
                domain=domain,
                hardware="simulated",
                spec=ENGINE,
                desired_replicas=replicas,
                actor=ACTOR,
            )
        )


def once(make: Callable[[], object]) -> None:
    """Run a creation; what exists from an interrupted earlier seed is kept."""
    with contextlib.suppress(DomainError):
        make()


def _promises() -> None:
    """Objectives, and what the simulated GPUs are taken to draw: assumptions, and named so."""
    once(
        partial(
            set_objective,
            work_class="",
            model="",
            metric="ttft",
            threshold_ms=2_000,
            target_ratio=0.95,
            actor=ACTOR,
        )
    )
    for region, grams, place in (
        ("eu", 345.0, "europe-west3, Frankfurt"),
        ("us", 430.0, "us-central1, Council Bluffs"),
    ):
        source = f"Demo assumption: {place} (codecarbon 3.3.2 impact.csv); PUE of ecologits 0.11.3"
        state_grid(region=region, g_co2e_per_kwh=grams, pue=1.2, source=source, actor=ACTOR)
    state_power(
        hardware="simulated",
        power_w=700.0,
        source="Demo assumption: rated power of an H100 SXM; nothing real is simulated here",
        actor=ACTOR,
    )


def _prices() -> None:
    now = timezone.now()
    for model, (input_nanousd, cached_nanousd, output_nanousd) in PRICES_NANOUSD.items():
        if price_in_force(model, now) is None:
            add_price(
                model=model,
                input_nanousd=input_nanousd,
                cached_nanousd=cached_nanousd,
                output_nanousd=output_nanousd,
                note="demo price book",
                actor=ACTOR,
            )


def _tenant(slug: str, name: str, zone: str, limits: Callable[[int, int], None]) -> dict[str, Any]:
    try:
        tenant_id = tenant_by_slug(slug).id
    except NotFound:
        tenant_id = create_tenant(slug=slug, name=name, timezone=zone, actor=ACTOR)
    key = issue_key(tenant_id=tenant_id, name="demo", actor=ACTOR)
    limits(tenant_id, key.id)
    return {
        "name": slug,
        "secret": key.secret,
        "model": "llama-8b",
        "is_noisy": slug == "globex",
    }


def _acme_limits(tenant_id: int, key_id: int) -> None:
    _limit(tenant_id, Dimension.REQUESTS, WindowKind.MINUTE, 600)
    _limit(tenant_id, Dimension.INPUT_TOKENS, WindowKind.MINUTE, 1_000_000)
    _limit(tenant_id, Dimension.SPEND_NANOUSD, WindowKind.DAY, 100 * USD)
    _limit(tenant_id, Dimension.CONCURRENCY, WindowKind.NOW, 64)
    set_limit(
        tenant_id=tenant_id,
        scope=LimitScope.KEY,
        dimension=Dimension.REQUESTS,
        window=WindowKind.MINUTE,
        amount=300,
        key_id=key_id,
        actor=ACTOR,
    )


def _globex_limits(tenant_id: int, key_id: int) -> None:
    _limit(tenant_id, Dimension.REQUESTS, WindowKind.MINUTE, 300)
    _limit(tenant_id, Dimension.INPUT_TOKENS, WindowKind.MINUTE, 500_000)
    _limit(tenant_id, Dimension.SPEND_NANOUSD, WindowKind.DAY, 50 * USD)
    _limit(tenant_id, Dimension.CONCURRENCY, WindowKind.NOW, 16)


def _limit(tenant_id: int, dimension: Dimension, window: WindowKind, amount: int) -> None:
    set_limit(
        tenant_id=tenant_id,
        scope=LimitScope.TENANT,
        dimension=dimension,
        window=window,
        amount=amount,
        actor=ACTOR,
    )
