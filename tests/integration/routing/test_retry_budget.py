"""What callers are told when the retry budget is spent, and what keeps it from being spent."""

import os
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import pytest
import redis

from routing.contracts.snapshot import FailurePolicy
from routing.decision.retry import UNREACHED_PAUSE_S
from tests.gatewaying import error_of, serving
from tests.stack import (
    GatewayProcess,
    make_snapshot,
    policy,
    shape_rows,
    start_gateway,
    wait_until,
)
from tests.upstream import UpstreamThread, answer, json_script, usage

BROKEN = json_script({"error": {"message": "boom"}}, 500)
GOOD = json_script(answer("here", usage(12, 7)))
CALLS = 40


@contextmanager
def dead_address() -> Iterator[tuple[str, int]]:
    """An address that refuses connections, and is nobody else's meanwhile."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield taken.getsockname()


def retries(gateway: GatewayProcess, name: str = "retries_total") -> float:
    page = httpx.get(f"{gateway.admin_url}/metrics", trust_env=False).text
    (value,) = (
        float(line.split()[1]) for line in page.splitlines() if line.startswith(f"headrace_{name} ")
    )
    return value


def test_a_spent_budget_is_named_and_says_when_to_come_back(
    tmp_path: Path, store: "redis.Redis[bytes]"
) -> None:
    failures = FailurePolicy(retry_burst=1.0, resend_before_output=True)
    with (
        UpstreamThread(BROKEN) as one,
        UpstreamThread(BROKEN) as other,
        serving(tmp_path, one, other, policy=policy(failures=failures)) as gateway,
    ):
        tried, spent = gateway.chat(), gateway.chat()
        assert (tried.status_code, error_of(tried.json())) == (502, "upstream_error")
        assert "x-headrace-limit" not in tried.headers
        assert "retry-after" not in tried.headers

        assert (spent.status_code, error_of(spent.json())) == (502, "upstream_error")
        assert spent.json()["error"]["type"] == "api_error"
        assert "retry budget" in spent.json()["error"]["message"]
        told = ("x-headrace-limit", "retry-after", "retry-after-ms", "x-should-retry")
        assert [spent.headers[name] for name in told] == ["retry_budget", "1", "1000", "true"]

        assert sum(len(one.completions) for one in (one, other)) == 3
        assert (retries(gateway), retries(gateway, "retries_refused_total")) == (1, 1)
        wait_until(lambda: len(shape_rows(store)) == 2, 5, "both calls are on record")
        assert sorted(one.refused_limit for one in shape_rows(store)) == ["", "retry_budget"]


@pytest.mark.parametrize("dead", [1, 2])
def test_a_replica_that_cannot_be_reached_does_not_draw_every_call(
    tmp_path: Path, store: "redis.Redis[bytes]", dead: int
) -> None:
    """With nothing in progress it looks the best, and of two broken ones only one is ejected."""
    failures = FailurePolicy(attempts=3, retry_burst=1000.0)
    with ExitStack() as stack:
        good = stack.enter_context(UpstreamThread(GOOD))
        addresses = [stack.enter_context(dead_address()) for _ in range(dead)]
        snapshot = make_snapshot([*addresses, good.address], policy=policy(failures=failures))
        gateway = stack.enter_context(
            start_gateway(snapshot, os.environ["REDIS_URL"], tmp_path / "state")
        )
        began_s = time.monotonic()
        for _ in range(CALLS):
            assert gateway.chat().status_code == 200
        pauses = (time.monotonic() - began_s) / UNREACHED_PAUSE_S
        assert retries(gateway) <= dead * (pauses + 1)
