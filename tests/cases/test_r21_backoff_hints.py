"""R21: back-off hints reach the caller, and it is clear whose limit was hit."""

import time
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path

import redis

from routing.contracts.enums import Dimension
from tests.gatewaying import error_of, serving
from tests.stack import limit, wait_for_room_in_the_minute
from tests.upstream import UpstreamThread, json_script

LIMITED = {"error": {"message": "slow down", "type": "rate_limit_error", "code": 429}}


def in_seven_seconds() -> str:
    return format_datetime(datetime.now(UTC) + timedelta(seconds=7), usegmt=True)


def test_the_upstreams_hint_is_passed_on_under_its_own_code(
    tmp_path: Path, store: "redis.Redis[bytes]"
) -> None:
    with UpstreamThread() as upstream, serving(tmp_path, upstream) as gateway:
        for stated in ("7", in_seven_seconds()):
            upstream.plan(json_script(LIMITED, 429, [("Retry-After", stated)]))
            response = gateway.chat()
            assert response.status_code == 429
            assert error_of(response.json()) == "upstream_rate_limited"
            assert 6 <= int(response.headers["retry-after"]) <= 8
            assert 5_000 <= int(response.headers["retry-after-ms"]) <= 8_000
        upstream.plan(json_script({"error": {"message": "busy"}}, 503))
        response = gateway.chat()
        assert (response.status_code, error_of(response.json())) == (503, "no_capacity")


def test_the_own_limit_says_until_when_its_window_lasts(
    tmp_path: Path, store: "redis.Redis[bytes]"
) -> None:
    limits = (limit(Dimension.REQUESTS, 1),)
    with UpstreamThread() as upstream, serving(tmp_path, upstream, limits=limits) as gateway:
        wait_for_room_in_the_minute(store)
        assert gateway.chat().status_code == 200
        response = gateway.chat()
        left_s = 60 - time.time() % 60
        assert (response.status_code, error_of(response.json())) == (429, "rate_limited")
        assert abs(int(response.headers["retry-after"]) - left_s) <= 1.1
        assert response.headers["x-headrace-scope"] == "tenant"
        assert response.headers["x-headrace-limit"]
        assert len(upstream.completions) == 1


def test_a_limited_upstream_is_left_alone_while_another_serves(
    tmp_path: Path, store: "redis.Redis[bytes]"
) -> None:
    limited = json_script(LIMITED, 429, [("Retry-After", "7")])
    with (
        UpstreamThread(limited) as u1,
        UpstreamThread() as u2,
        serving(tmp_path, u1, u2) as gateway,
    ):
        until = None
        for _ in range(40):
            assert gateway.chat().status_code == 200
            if u1.completions and until is None:
                until = u1.completions[0].arrived_at + 7
        assert until is not None
        assert time.monotonic() < until, "the test was too slow to say anything"
        assert len(u1.completions) == 1
