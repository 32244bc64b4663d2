"""The breaker of a region on real parts: half of it open, the rest of it is left for another."""

from pathlib import Path
from typing import Any

import httpx
import msgspec

from tests.gatewaying import body_of, serving
from tests.stack import GatewayProcess, model, pool, wait_until
from tests.upstream import UpstreamThread, answer, json_script, usage

BROKEN = json_script({"error": {"message": "boom"}}, 500)
FULL = json_script({"error": {"message": "currently busy"}}, 503)
ASKED = 8


def open_breakers(gateway: GatewayProcess) -> set[str]:
    page = httpx.get(f"{gateway.admin_url}/metrics", trust_env=False).text
    lines = [line for line in page.splitlines() if line.startswith("headrace_replica_breaker_open")]
    return {line.split('"')[1] for line in lines if line.endswith("} 1")}


def test_the_rest_of_a_failing_region_serves_only_when_nothing_else_can(
    tmp_path: Path, store: Any
) -> None:
    """Three replicas in eu, two of them broken; another pool in us, second in the policy."""
    good = json_script(answer("fine", usage(3, 1)))
    with (
        UpstreamThread(BROKEN) as first,
        UpstreamThread(BROKEN) as second,
        UpstreamThread(good) as well,
        UpstreamThread(good) as other,
    ):
        eu = pool("p1", [one.address for one in (first, second, well)])
        us = pool("p2", [other.address])
        pools = {
            "p1": msgspec.structs.replace(eu, region="eu"),
            "p2": msgspec.structs.replace(us, region="us"),
        }
        models = {"alpha-8b": model("alpha-8b", ("p1", "p2"))}
        with serving(tmp_path, pools=pools, models=models) as gateway:

            def both_open() -> bool:
                gateway.chat(**body_of())
                return {"p1-u1", "p1-u2"} <= open_breakers(gateway)

            wait_until(both_open, 20, "two of three breakers open")

            def is_left() -> bool:
                before = len(well.completions)
                is_served = gateway.chat(**body_of()).status_code == 200
                return is_served and len(well.completions) == before

            wait_until(is_left, 5, "the region is left")
            before = len(well.completions), len(other.completions)
            for _ in range(ASKED):
                assert gateway.chat(**body_of()).status_code == 200
            assert len(well.completions) == before[0], "it answers, but its region fails"
            assert len(other.completions) == before[1] + ASKED
            other.plan(FULL)

            def nothing_else_can() -> bool:
                is_served = gateway.chat(**body_of()).status_code == 200
                return is_served and len(well.completions) > before[0]

            wait_until(nothing_else_can, 10, "its region serves as the last resort")
