"""R06: what is held is an upper bound for every request shape."""

import base64
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import redis

from routing.contracts.enums import Dimension, WindowKind
from routing.store import keys
from tests.accounting import fields
from tests.gatewaying import ACME, error_of, row, rows, serving
from tests.stack import ALPHA, limit, model, usd, wait_until
from tests.upstream import UpstreamThread, answer, json_script, usage

MODELS = {
    "alpha-8b": model("alpha-8b"),
    "long-8b": model("long-8b", context_tokens=32_768, bytes_per_token=4.0),
}
WORDS_100 = "all about the water " * 25
PICTURE = "data:image/png;base64," + base64.b64encode(bytes(225_000)).decode()  # 300 kB
TEN_THOUSAND_TOKENS = 10_000 * ALPHA.input_nanousd // 1_000_000


def said(text: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": text}]


def spend(store: "redis.Redis[bytes]") -> tuple[int, int]:
    """(spent, held) of the day, nano-dollars."""
    names = list(store.scan_iter(f"{keys.bucket_tag(ACME)}:*:w:acme:tenant::d:*"))
    if not names:
        return 0, 0
    found = fields(store, names[0])
    return found.get("usd", 0), found.get("usd_h", 0)


@pytest.mark.parametrize(
    "body",
    [
        pytest.param({"messages": said(WORDS_100)}, id="no max_tokens"),
        pytest.param({"n": 4, "max_tokens": 1000, "messages": said("hi")}, id="four answers"),
        pytest.param(
            {"model": "long-8b", "max_tokens": 1, "messages": said("water " * 20_000)},
            id="20,000 words",
        ),
    ],
)
def test_what_could_cost_more_than_is_left_is_refused_every_time(
    tmp_path: Path, store: "redis.Redis[bytes]", body: dict[str, Any]
) -> None:
    limits = (limit(Dimension.SPEND_NANOUSD, usd("0.0050"), WindowKind.DAY),)
    with (
        UpstreamThread() as upstream,
        serving(tmp_path, upstream, models=MODELS, limits=limits) as gateway,
    ):
        for _ in range(3):
            refused = gateway.chat(**body)
            assert (refused.status_code, error_of(refused.json())) == (429, "budget_exceeded")
        assert upstream.completions == []
        assert spend(store) == (0, 0)


@pytest.mark.parametrize(
    ("body", "used"),
    [
        pytest.param({"messages": said("hi")}, usage(10, 3951), id="no max_tokens"),
        pytest.param(
            {"n": 4, "max_tokens": 1000, "messages": said("hi")}, usage(10, 4000), id="four answers"
        ),
    ],
)
def test_what_is_served_never_costs_more_than_was_held(
    tmp_path: Path, store: "redis.Redis[bytes]", body: dict[str, Any], used: dict[str, Any]
) -> None:
    """The upstream uses everything that it was allowed; the budget is just enough for that."""
    budget = usd("0.0082")
    limits = (limit(Dimension.SPEND_NANOUSD, budget, WindowKind.DAY),)
    script = json_script(answer(used=used))
    with (
        UpstreamThread(script) as upstream,
        serving(tmp_path, upstream, models=MODELS, limits=limits) as gateway,
    ):
        assert gateway.chat(**body).status_code == 200
        (seen,) = upstream.completions
        allowed = seen.json["max_tokens"] * seen.json.get("n", 1)
        assert used["completion_tokens"] == allowed, "everything that it was allowed"
        event = row(store)
        assert 0 < event.spend_nanousd <= event.held_nanousd <= budget
        spent = used["prompt_tokens"] * 1_000 + used["completion_tokens"] * 2_000
        wait_until(lambda: spend(store) == (spent, 0), 5, "settled at what was used")


def test_a_picture_is_not_held_as_text(tmp_path: Path, store: "redis.Redis[bytes]") -> None:
    limits = (limit(Dimension.SPEND_NANOUSD, usd("0.0500"), WindowKind.DAY),)
    parts = [
        {"type": "text", "text": "what is this"},
        {"type": "image_url", "image_url": {"url": PICTURE}},
    ]
    with (
        UpstreamThread(json_script(answer(used=usage(1200, 10)), delay_s=1.0)) as upstream,
        serving(tmp_path, upstream, models=MODELS, limits=limits) as gateway,
        ThreadPoolExecutor(1) as pool,
    ):
        message = [{"role": "user", "content": parts}]
        call = pool.submit(gateway.chat, max_tokens=10, messages=message)
        wait_until(lambda: spend(store)[1] > 0, 10, "held")
        assert spend(store)[1] < TEN_THOUSAND_TOKENS
        assert call.result().status_code == 200
        event = row(store)
        assert event.spend_nanousd <= usd("0.0500")


def test_a_tokenizer_that_knows_no_words_is_held_for_from_the_first_request(
    tmp_path: Path, store: "redis.Redis[bytes]"
) -> None:
    """A token a byte, where the model's own rate says 2.5: the hold bounds it all the same."""
    with UpstreamThread() as upstream, serving(tmp_path, upstream, models=MODELS) as gateway:
        for number, text in enumerate((WORDS_100, WORDS_100 * 2, WORDS_100), 1):
            upstream.plan(json_script(answer(used=usage(len(text) + 4, 1))))
            assert gateway.chat(max_tokens=1, messages=said(text)).status_code == 200
            found = rows(store, number)[-1]
            assert found.input_tokens == len(text) + 4
            assert not found.is_above_hold
