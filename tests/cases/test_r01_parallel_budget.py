"""R01: parallel requests cannot together spend past the budget."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import redis

from routing.contracts.enums import Dimension, WindowKind
from routing.store import keys
from tests.accounting import fields
from tests.gatewaying import ACME, body_of, rows, serving
from tests.stack import ACME_KEY, GatewayProcess, limit, make_snapshot, publish, usd, wait_until
from tests.upstream import UpstreamThread, answer, json_script, stream_script, usage

BUDGET = usd("0.0100")
EACH = usd("0.002010")
LIMITS = (limit(Dimension.SPEND_NANOUSD, BUDGET, WindowKind.DAY),)


class Watch:
    """Polls spent + held every 50 ms."""

    def __init__(self, store: "redis.Redis") -> None:
        self.store, self.seen, self.stopping = store, [], threading.Event()
        self.thread = threading.Thread(target=self._poll)

    def __enter__(self) -> "Watch":
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stopping.set()
        self.thread.join()

    def position(self) -> tuple[int, int]:
        names = list(self.store.scan_iter(f"{keys.bucket_tag(ACME)}:*:w:acme:tenant::d:*"))
        if not names:
            return 0, 0
        found = fields(self.store, names[0])
        return found.get("usd", 0), found.get("usd_h", 0)

    def _poll(self) -> None:
        while not self.stopping.wait(0.05):
            self.seen.append(sum(self.position()))


def burst(gateway: GatewayProcess, *, is_stream: bool) -> list[int]:
    barrier = threading.Barrier(20)

    def one(_: int) -> int:
        barrier.wait()
        return gateway.chat(ACME_KEY, **body_of(max_tokens=1000, stream=is_stream)).status_code

    with ThreadPoolExecutor(20) as pool:
        return list(pool.map(one, range(20)))


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize("is_new_tenant", [False, True])
def test_twenty_at_once_spend_at_most_the_budget(
    store: "redis.Redis", tmp_path: Path, is_stream: bool, is_new_tenant: bool
):
    used = usage(10, 1000)
    script = (
        stream_script(["x"], used, first_s=2.0)
        if is_stream
        else json_script(answer(used=used), delay_s=2.0)
    )
    with UpstreamThread(script) as upstream:
        with serving(tmp_path, upstream, limits=LIMITS) as gateway, Watch(store) as watch:
            if is_new_tenant:
                # The tenant exists for a second only, and nothing has ever been counted for it.
                publish(store, make_snapshot([upstream.address], limits=LIMITS, number=2))
                time.sleep(1.0)
            codes = burst(gateway, is_stream=is_stream)
            served = codes.count(200)
            assert served in (3, 4)
            assert codes.count(429) == 20 - served
            assert len(upstream.completions) == served
            rows(store, served)
            wait_until(lambda: watch.position() == (served * EACH, 0), 5, "all settled")
        assert max(watch.seen) <= BUDGET
        assert len(watch.seen) > 10
