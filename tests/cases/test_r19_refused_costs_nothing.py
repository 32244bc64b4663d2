"""R19: being refused by one limit costs nothing on the others."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import redis

from routing.contracts.enums import Dimension, WindowKind
from routing.store import keys
from tests.accounting import fields
from tests.gatewaying import ACME, body_of, rows, serving
from tests.stack import ACME_KEY, api_key, limit, wait_for_room_in_the_minute, wait_until
from tests.upstream import UpstreamThread, answer, json_script, usage

REFUSALS: dict[str, tuple[dict[str, Any], set[int]]] = {
    "concurrency": ({}, {429}),
    "budget": ({"max_tokens": 4000}, {429}),
    "invalid body": ({"messages": "not a list"}, {400}),
    "model not allowed": ({"model": "free-3b"}, {403, 404}),
}


@pytest.mark.parametrize("why", REFUSALS)
def test_third_request_is_served_within_the_same_minute(
    store: "redis.Redis", tmp_path: Path, why: str
):
    changes, codes = REFUSALS[why]
    limits = [limit(Dimension.REQUESTS, 2), limit(Dimension.INPUT_TOKENS, 10_000)]
    if why == "concurrency":
        limits.append(limit(Dimension.CONCURRENCY, 1, WindowKind.NOW))
    if why == "budget":
        limits.append(limit(Dimension.SPEND_NANOUSD, 5_000_000, WindowKind.DAY))
    slow = json_script(answer(used=usage(10, 5)), delay_s=3.0)
    digest, key = api_key("acme", ACME_KEY, models=("alpha-8b",))
    with (
        UpstreamThread(slow) as upstream,
        serving(tmp_path, upstream, limits=tuple(limits), keys={digest: key}) as gateway,
        ThreadPoolExecutor(1) as pool,
    ):
        wait_for_room_in_the_minute(store)
        first = pool.submit(lambda: gateway.chat(ACME_KEY, **body_of()))
        wait_until(lambda: len(upstream.completions) == 1, 5, "A at the upstream")
        refused = gateway.chat(ACME_KEY, **(body_of() | changes))
        assert refused.status_code in codes, refused.text
        assert first.result().status_code == 200
        upstream.plan(json_script(answer(used=usage(10, 5))))
        third = gateway.chat(ACME_KEY, **body_of())
        assert third.status_code == 200, third.text
        rows(store, 2)
        (name,) = store.scan_iter(f"{keys.bucket_tag(ACME)}:*:w:acme:tenant::m:*")
        found = {field: amount for field, amount in fields(store, name).items() if amount}
        assert found == {"req": 2, "in": 20}
