"""R07: limits hold across gateway processes, also when clocks differ."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
import redis

from routing.contracts.enums import Dimension, WindowKind
from tests.gatewaying import body_of, serving
from tests.stack import ACME_KEY, ROOT, GatewayProcess, limit, wait_for_room_in_the_minute
from tests.upstream import Seen, UpstreamThread, answer, json_script, usage

AHEAD = "import time\n_real = time.time\ntime.time = lambda: _real() + 30.0\n"
SHORT = json_script(answer(used=usage(10, 5)))
SLOW = json_script(answer(used=usage(10, 5)), delay_s=1.0)


def burst(gateways: list[GatewayProcess], count: int, over_s: float = 0.0) -> list[httpx.Response]:
    barrier = threading.Barrier(count)

    def one(number: int) -> httpx.Response:
        barrier.wait()
        time.sleep(over_s * number / count)
        return gateways[number % len(gateways)].chat(ACME_KEY, **body_of(max_tokens=5))

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(one, range(count)))


class Peak:
    """Most requests that the upstream had at once."""

    def __init__(self, upstream: UpstreamThread) -> None:
        self.upstream = upstream

    @property
    def most(self) -> int:
        marks = []
        for seen in self.upstream.completions:
            marks += [(seen.arrived_at, 1), (seen.arrived_at + 0.999, -1)]
        level = top = 0
        for _, step in sorted(marks):
            level += step
            top = max(top, level)
        return top


def test_upstream_never_sees_more_than_the_concurrency_limit(store: "redis.Redis", tmp_path: Path):
    limits = (limit(Dimension.CONCURRENCY, 10, WindowKind.NOW),)
    with (
        UpstreamThread(SLOW) as upstream,
        serving(tmp_path / "a", upstream, limits=limits, env={"HEADRACE_GATEWAY_ID": "g0"}) as one,
        serving(tmp_path / "b", upstream, limits=limits, env={"HEADRACE_GATEWAY_ID": "g1"}) as two,
    ):
        codes = [r.status_code for r in burst([one, two], 60)]
        # Sixty clients on a busy machine may need more than a second to start: then the first
        # ten have ended, and later ones rightly enter. What counts is how many ran at once.
        assert codes.count(200) >= 10
        assert codes.count(200) + codes.count(429) == 60
        assert Peak(upstream).most == 10


@pytest.mark.parametrize("is_skewed", [False, True])
def test_requests_per_minute_are_shared_and_follow_the_stores_clock(
    store: "redis.Redis", tmp_path: Path, is_skewed: bool
):
    (tmp_path / "shim").mkdir()
    (tmp_path / "shim" / "sitecustomize.py").write_text(AHEAD)
    ahead = {"PYTHONPATH": f"{tmp_path / 'shim'}:{ROOT}"} if is_skewed else {}
    limits = (limit(Dimension.REQUESTS, 30),)
    with (
        UpstreamThread(SHORT) as upstream,
        serving(tmp_path / "a", upstream, limits=limits, env={"HEADRACE_GATEWAY_ID": "g0"}) as one,
        serving(
            tmp_path / "b", upstream, limits=limits, env={"HEADRACE_GATEWAY_ID": "g1"} | ahead
        ) as two,
    ):
        wait_for_room_in_the_minute(store)
        answers = burst([one, two], 60, over_s=4.0)
        codes = [r.status_code for r in answers]
        assert codes.count(200) == 30
        assert codes.count(429) == 30
        assert len(upstream.completions) == 30
        now = store.time()[0]
        hints = [int(g.chat(ACME_KEY, **body_of()).headers["retry-after"]) for g in (one, two)]
        assert abs(hints[0] - hints[1]) <= 1
        assert abs(hints[0] - (60 - now % 60)) <= 1


def test_peak_counts_overlaps():
    """The measuring tool itself."""
    upstream = type(
        "U", (), {"completions": [Seen("POST", "/", [], b"", at) for at in (0, 0.5, 2)]}
    )
    assert Peak(upstream).most == 2
