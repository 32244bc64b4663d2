"""A demo pool of a real vLLM on this machine's CPU, beside the simulated ones.

Same services as the rest of the seed; safe to run at every start. The pool stays when a later start
does without it, but wants no replicas then.
"""

import contextlib
from functools import partial

from django.utils import timezone

from capacity.fleet.services import create_model, create_pool, set_desired_replicas
from console.demo.pools import REAL_POOL
from console.demo.seed import ACTOR, POLICY, USD, once
from console.errors import Conflict, NotFound
from routing.policies.selectors import live
from routing.policies.services import publish
from tenants.prices.selectors import price_in_force
from tenants.prices.services import add_price

MODEL = "tiny-vllm"
CONTEXT_TOKENS = 4096
REPLICAS = 2
BLOCK_TOKENS = 32
# 16,384 KV tokens a replica: eight long calls fill it, so pressure is real.
SETTINGS = {
    "model": "tiny",
    "max_model_len": CONTEXT_TOKENS,
    "max_num_seqs": 8,
    "num_gpu_blocks_override": 512,
}


def seed_real_engine() -> None:
    """The pool with its model, price and place in the policy, wanting its replicas."""
    once(
        partial(
            create_model,
            name=MODEL,
            context_tokens=CONTEXT_TOKENS,
            output_cap_tokens=1024,
            bytes_per_token=1.0,  # words it does not know are a token for each byte
            actor=ACTOR,
        )
    )
    once(
        partial(
            create_pool,
            name=REAL_POOL,
            model=MODEL,
            driver="process",
            region="eu",
            domain="eu-a",
            hardware="cpu",
            block_size_tokens=BLOCK_TOKENS,
            spec=SETTINGS,
            actor=ACTOR,
        )
    )
    _want(REPLICAS, "real engine")
    if price_in_force(MODEL, timezone.now()) is None:
        add_price(
            model=MODEL,
            input_nanousd=USD // 10,
            cached_nanousd=USD // 100,
            output_nanousd=USD // 5,
            note="demo price book",
            actor=ACTOR,
        )
    _route()


def _route() -> None:
    """Give the model a target, unless the live policy has it already."""
    version = live(POLICY)
    models = version.document.get("models") if version else None
    if version is None or not isinstance(models, dict) or MODEL in models:
        return
    routed = {**models, MODEL: {"targets": [{"pool": REAL_POOL}]}}
    publish(
        policy=POLICY,
        document={**version.document, "models": routed},
        base=version.number,
        note="a real vLLM on CPU",
        actor=ACTOR,
    )


def rest_real_engine() -> None:
    """No replicas for the pool, if there is one: this start does without the real engine."""
    with contextlib.suppress(NotFound):
        _want(0, "started without --real-engine")


def _want(replicas: int, reason: str) -> None:
    """Set the pool's number, unless a rollout that was left running has it: then it keeps its."""
    with contextlib.suppress(Conflict):
        set_desired_replicas(pool=REAL_POOL, replicas=replicas, actor=ACTOR, reason=reason)
