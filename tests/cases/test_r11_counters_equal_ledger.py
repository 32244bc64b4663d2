"""R11: after heavy mixed load the live counters equal the ledger, twice, with a loss between."""

import asyncio
import json
import os
import random
from collections import Counter
from pathlib import Path

import httpx
import pytest
import redis

from routing.contracts.enums import Dimension, WindowKind
from routing.store import keys
from tests.ledgering import (
    Party,
    ScriptedGateway,
    assert_exact,
    is_open,
    make_party,
    rows,
    running_writer,
    until,
)
from tests.reconciling import Reconciliation, reconcile
from tests.stack import (
    ACME_KEY,
    GatewayProcess,
    api_key,
    limit,
    make_snapshot,
    start_gateway,
    tenant,
    usd,
)
from tests.upstream import Script, Seen, UpstreamThread, json_script, stream_script

pytestmark = pytest.mark.django_db(transaction=True)

REQUESTS = 500
CONCURRENCY = 50


def script_of(seen: Seen) -> Script:
    """The prompt says what the upstream is to do."""
    wish = json.loads(seen.body)["messages"][0]["content"]
    if wish == "fail":
        return json_script({"error": {"message": "boom"}}, 500)
    if wish == "slow":
        return stream_script(["word "] * 40, gap_s=0.01)
    return json_script()


async def mixed_load(gateway: GatewayProcess, seed: int) -> Counter[str]:
    """80% whole answers, 10% cancelled at a random moment, 10% failed by the upstream."""
    draw, seen = random.Random(seed), Counter[str]()
    gate = asyncio.Semaphore(CONCURRENCY)
    headers = {"authorization": f"Bearer {ACME_KEY}"}
    limits = httpx.Limits(max_connections=CONCURRENCY)

    async with httpx.AsyncClient(timeout=60, trust_env=False, limits=limits) as client:

        async def one(wish: str, patience_s: float) -> None:
            body = {
                "model": "alpha-8b",
                "messages": [{"role": "user", "content": wish}],
                "max_tokens": 50,
                "stream": wish == "slow",
            }
            url = f"{gateway.url}/v1/chat/completions"
            async with gate:
                try:
                    async with asyncio.timeout(patience_s):
                        answer = await client.post(url, json=body, headers=headers)
                except TimeoutError:
                    seen["cancelled"] += 1
                    return
                if answer.status_code != 200:
                    seen[str(answer.json()["error"]["code"])] += 1
                else:
                    seen["ok"] += 1

        wishes = ["plain"] * 8 + ["slow", "fail"]
        tasks = []
        for _ in range(REQUESTS):
            wish = draw.choice(wishes)
            tasks.append(one(wish, draw.random() * 0.35 if wish == "slow" else 60))
        await asyncio.gather(*tasks)
    return seen


def settled(party: Party) -> Reconciliation:
    """The comparison once nothing is on its way, within the lease and the sweep."""
    url = os.environ["REDIS_URL"]

    def quiet() -> Reconciliation | None:
        found = reconcile(tenant_id=party.tenant_id, store_url=url)
        is_moving = (
            found.unread or found.pending or found.held or not found.is_ready or not found.is_steady
        )
        return None if is_moving else found

    return until(quiet, timeout_s=30, what="quiet")


def test_counters_equal_ledger_after_mixed_load_and_after_their_loss(
    store: redis.Redis, state_dir: Path
) -> None:
    party, scripted = make_party(), ScriptedGateway(store)
    bounds = (limit(Dimension.SPEND_NANOUSD, usd("1000"), WindowKind.DAY),)
    digest, key = api_key(
        str(party.tenant_id), ACME_KEY, id=str(party.key_id), project_id=str(party.project_id)
    )
    with UpstreamThread() as upstream, running_writer():
        upstream.choose = script_of
        until(lambda: is_open(store, party), what="open")
        snapshot = make_snapshot(
            [upstream.address],
            tenants={str(party.tenant_id): tenant(str(party.tenant_id), bounds)},
            keys={digest: key},
        )
        with start_gateway(snapshot, os.environ["REDIS_URL"], state_dir) as gateway:
            total = Counter[str]()
            for turn in (1, 2):
                outcomes = asyncio.run(mixed_load(gateway, seed=turn))
                assert outcomes["budget_exceeded"] == 0, outcomes
                total += outcomes
                assert outcomes["ok"] > REQUESTS / 2, outcomes
                found = settled(party)
                assert found.is_clean, found
                sums = assert_exact(scripted, party)
                assert sums["usd"] > 0
                _delete_live_counters(store, party)
                until(lambda turn=turn: is_open(store, party, turn + 1), what="rebuilt")
                assert settled(party).is_clean
                assert assert_exact(scripted, party) == sums
            reached = len(upstream.completions)
    # A client that left at once may never have reached the gateway; whoever was answered has a row.
    booked, attempts = rows("SELECT count(*), sum(attempts) FROM tenants_usage")[0]
    answered = total["ok"] + total["upstream_error"]
    assert answered <= booked <= 2 * REQUESTS, total
    assert reached <= attempts <= booked  # a call given up before its upstream read it counts too
    assert rows("SELECT count(*) FROM tenants_usage WHERE kind IN ('w', 'r')") == [(0,)]


def _delete_live_counters(store: redis.Redis, party: Party) -> None:
    names = list(store.scan_iter(f"{keys.bucket_tag(party.bucket)}:*"))
    assert names
    store.delete(*names)
