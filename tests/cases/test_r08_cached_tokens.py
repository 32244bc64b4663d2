"""R08: cached prompt tokens are priced once, at the cached price."""

from pathlib import Path
from typing import Any

import pytest
import redis

from tests.gatewaying import body_of, row, serving, stream
from tests.upstream import UpstreamThread, answer, json_script, stream_script


def used(prompt: int, completion: int, **details: dict[str, int]) -> dict[str, Any]:
    return {"prompt_tokens": prompt, "completion_tokens": completion} | details


CASES = [
    (used(20_000, 1_000, prompt_tokens_details={"cached_tokens": 16_000}), "0.007600", False),
    (used(0, 1_000, completion_tokens_details={"reasoning_tokens": 800}), "0.002000", False),
    (used(100, 0, prompt_tokens_details={"cached_tokens": 150}), "0.000010", True),
    (used(20_000, 1_000), "0.022000", False),
]


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize(("reported", "dollars", "is_suspicious"), CASES)
def test_row_costs_exactly(
    tmp_path: Path, store: "redis.Redis[bytes]", reported: dict[str, Any], dollars: str,
    is_suspicious: bool, is_stream: bool,
) -> None:  # fmt: skip
    script = stream_script(["a"], reported) if is_stream else json_script(answer(used=reported))
    with UpstreamThread(script) as upstream, serving(tmp_path, upstream) as gateway:
        if is_stream:
            stream(gateway)
        else:
            response = gateway.chat(**body_of())
            assert response.headers["x-headrace-cost-usd"] == f"{dollars}000"
        found = row(store)
        assert found.spend_nanousd == int(dollars.replace(".", "")) * 1000
        assert found.is_suspicious is is_suspicious
