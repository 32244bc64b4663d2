"""R21: callers who come back when they are told are admitted, whatever limit refused them."""

import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
import redis

from routing.contracts.enums import Dimension, LimitScope, WindowKind
from routing.store import keys
from tests.gatewaying import body_of, serving
from tests.stack import GatewayProcess, api_key, limit, tenant, wait_until
from tests.upstream import UpstreamThread, answer, json_script, usage

SERVICE_S = 0.5
PATIENCE_S = 150.0
HONEST = 0.9


@dataclass(frozen=True)
class Population:
    """Callers of one tenant, who all start together and obey `retry-after-ms`."""

    name: str
    bound: object
    callers: int
    late: int = 0  # more of them, two seconds into the next minute: demand does not end

    @property
    def secret(self) -> str:
        return f"hr_test_{self.name}_secret"


def of_key(dimension: Dimension, amount: int, name: str):
    return limit(dimension, amount, scope=LimitScope.KEY, subject=f"k-{name}")


POPULATIONS = (
    Population("requests", limit(Dimension.REQUESTS, 8), 18, late=2),
    Population("outputs", limit(Dimension.OUTPUT_TOKENS, 400), 18),
    Population("perkey", of_key(Dimension.REQUESTS, 4, "perkey"), 7),
    Population("running", limit(Dimension.CONCURRENCY, 3, WindowKind.NOW), 15, late=3),
)
LIMITS = {
    "requests": "requests_per_minute",
    "outputs": "output_tokens_per_minute",
    "perkey": "requests_per_minute",
    "running": "concurrency",
}


def ask(client: httpx.Client, one: Population, number: int) -> httpx.Response:
    message = [{"role": "user", "content": f"{one.name} {number}"}]
    return client.post(
        "/v1/chat/completions",
        json=body_of(messages=message, max_tokens=50),
        headers={"authorization": f"Bearer {one.secret}"},
    )


def obey(
    gateway: GatewayProcess, one: Population, number: int, begin: "threading.Event"
) -> list[str]:
    """What each return of a caller came to, until it is served."""
    outcomes: list[str] = []
    with httpx.Client(base_url=gateway.url, timeout=30, trust_env=False) as client:
        begin.wait(PATIENCE_S)
        end = time.monotonic() + PATIENCE_S
        response = ask(client, one, number)
        while response.status_code == 429:
            assert response.headers["x-headrace-limit"] == LIMITS[one.name]
            wait_s = int(response.headers["retry-after-ms"]) / 1000
            assert time.monotonic() + wait_s < end, f"{one.name} was told {wait_s} s"
            time.sleep(wait_s)  # the wait is what is tested
            response = ask(client, one, number)
            outcomes.append("admitted" if response.status_code == 200 else "refused")
    assert response.status_code == 200, response.text
    return outcomes


def shown(gateway: GatewayProcess) -> Counter[tuple[str, str]]:
    """The gateway's own counts."""
    page = httpx.get(f"{gateway.admin_url}/metrics", trust_env=False).text
    found: Counter[tuple[str, str]] = Counter()
    for line in page.splitlines():
        if line.startswith("headrace_returns_total{"):
            labels, value = line.removeprefix("headrace_returns_total{").split("} ")
            named = dict(part.split("=") for part in labels.split(","))
            found[named["limit"].strip('"'), named["outcome"].strip('"')] = int(float(value))
    return found


def kept(store: "redis.Redis[bytes]") -> Counter[tuple[str, str]]:
    """The store's counts of today, all tenants."""
    found: Counter[tuple[str, str]] = Counter()
    for one in POPULATIONS:
        day = store.time()[0] // 86_400
        for at in (day - 1, day):  # midnight may pass
            for name, value in store.hgetall(keys.returns_day(one.name, at)).items():
                limit_name, _, outcome = name.decode().partition("|")
                found[limit_name, outcome] += int(value)
    return found


@pytest.mark.timeout(300)  # it lives through the ends of two minutes
def test_nine_in_ten_who_come_back_when_told_are_admitted(
    tmp_path: Path, store: "redis.Redis[bytes]"
) -> None:
    known = [api_key(one.name, one.secret) for one in POPULATIONS]
    tenants = {one.name: tenant(one.name, (one.bound,)) for one in POPULATIONS}
    slow = json_script(answer(used=usage(10, 50)), delay_s=SERVICE_S)
    with (
        UpstreamThread(slow) as upstream,
        serving(tmp_path, upstream, tenants=tenants, keys=dict(known)) as gateway,
    ):
        running = POPULATIONS[-1]
        with httpx.Client(base_url=gateway.url, timeout=30, trust_env=False) as client:
            for number in (-1, -2):  # so that it is known how long one takes
                assert ask(client, running, number).status_code == 200
        now, later = threading.Event(), threading.Event()
        jobs = [(one, n, now) for one in POPULATIONS for n in range(one.callers)]
        jobs += [(one, 1000 + n, later) for one in POPULATIONS for n in range(one.late)]
        with ThreadPoolExecutor(len(jobs)) as pool:
            futures = [(one, pool.submit(obey, gateway, one, n, at)) for one, n, at in jobs]
            # Late in a minute, so that callers told its end do not wait a whole one.
            wait_until(lambda: 48 <= store.time()[0] % 60 <= 53, 65, "the end of a minute")
            minute = store.time()[0] // 60
            now.set()
            wait_until(lambda: store.time()[0] >= minute * 60 + 62, 20, "the next minute")
            later.set()
            came = Counter((one.name, what) for one, future in futures for what in future.result())
        for one in POPULATIONS:
            returns = came[one.name, "admitted"] + came[one.name, "refused"]
            assert returns >= one.callers // 3, f"{one.name}: too few were refused to say anything"
            share = came[one.name, "admitted"] / returns
            assert share >= HONEST, (one.name, came)
        by_limit: Counter[tuple[str, str]] = Counter()
        for (name, outcome), count in came.items():
            by_limit[LIMITS[name], outcome] += count
        wait_until(lambda: shown(gateway) == by_limit, 5, f"the metric says {by_limit}")
        wait_until(lambda: kept(store) == by_limit, 5, f"the store says {by_limit}")
