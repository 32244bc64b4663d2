"""What the gateway's soak runs on: two gateways and the ledger's process on the test's database."""

import os
import random
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import redis

from routing.contracts.enums import Dimension, WindowKind
from routing.contracts.snapshot import FailurePolicy
from tenants.reconcile.services import reconcile
from tests.ledgering import Party, is_open, ledger_process, make_party, rows, until
from tests.reconciling import reconcile as holds_of
from tests.soak.callers import Callers
from tests.soak.farm import Farm
from tests.soak.gateways import Plan, Report, Row, classify, run
from tests.stack import (
    ACME_KEY,
    GLOBEX_KEY,
    GatewayProcess,
    api_key,
    limit,
    make_snapshot,
    policy,
    publish,
    start_gateway,
    tenant,
    usd,
)

DEADLINES = (5.0, 8.0, 90.0)  # far above what a busy machine needs for a healthy answer
# A call's own fault may be followed by a killed and by a refusing replica: the fourth try serves.
# The budget is wide: here each retry is a fault that was put in, not a storm.
FAILURES = FailurePolicy(
    attempts=4, retry_per_success=0.2, retry_burst=200.0, resend_before_output=True
)
LIMITS = (
    limit(Dimension.REQUESTS, 10**9, WindowKind.DAY),
    limit(Dimension.SPEND_NANOUSD, usd("1000000"), WindowKind.DAY),
    limit(Dimension.CONCURRENCY, 10_000, WindowKind.NOW),
)
START_S = 120.0  # of the ledger on a busy machine
BOOKS_S = 90.0  # the longest lease, its sweep, and a ledger that is behind


@dataclass(frozen=True, slots=True)
class Served:
    """Ready to be called."""

    gateways: list[GatewayProcess]
    farm: Farm
    parties: dict[str, Party]


@contextmanager
def served(
    store: "redis.Redis[bytes]",
    directory: Path,
    seed: int,
    *,
    gateway_count: int = 2,
    replicas: int = 6,
    deadlines: tuple[float, float, float] = DEADLINES,
) -> Iterator[Served]:
    """Two tenants, gateways, replicas, one ledger writer."""
    parties = {ACME_KEY: make_party("acme"), GLOBEX_KEY: make_party("globex")}
    tags = directory / "tags"
    tags.mkdir()
    with ExitStack() as stack:
        farm = stack.enter_context(Farm(replicas, tags, random.Random(f"{seed}:farm")))
        keys = {}
        for secret, party in parties.items():
            ids = {"id": str(party.key_id), "project_id": str(party.project_id)}
            keys |= dict([api_key(str(party.tenant_id), secret, **ids)])
        snapshot = make_snapshot(
            farm.addresses,
            tenants={str(p.tenant_id): tenant(str(p.tenant_id), LIMITS) for p in parties.values()},
            keys=keys,
            policy=policy(deadlines=deadlines, failures=FAILURES),
        )
        publish(store, snapshot)
        log = stack.enter_context((directory / "ledger.log").open("ab"))
        stack.enter_context(ledger_process(log))
        for party in parties.values():
            until(lambda party=party: is_open(store, party), START_S, "counters open")
        gateways = [
            stack.enter_context(
                start_gateway(
                    None,
                    os.environ["REDIS_URL"],
                    directory / f"g{n}",
                    HEADRACE_GATEWAY_ID=f"g{n}",
                )
            )
            for n in range(gateway_count)
        ]
        yield Served(gateways, farm, parties)


async def soaked(on: Served, plan: Plan, seed: int) -> tuple[Report, Callers]:
    """The run itself; the books are checked by `close_books`."""
    callers = Callers(
        tuple(one.port for one in on.gateways), tuple(on.parties), random.Random(f"{seed}:calls")
    )
    return await run(plan, on.gateways, on.farm, callers, seed), callers


def close_books(on: Served, callers: Callers, report: Report) -> dict[str, int]:
    """Wait until nothing is on its way and nothing held, give each call its row.

    Returns what the product's own `reconcile` counts, by check.
    """
    answered = {one.request_id for one in callers.seen if one.request_id}
    until(lambda: _is_quiet(on), BOOKS_S, "nothing held, nothing on its way")
    found = ledger_rows()
    strangers = found.keys() - answered
    assert not strangers, f"{len(strangers)} rows that nobody asked for: {list(strangers)[:3]}"
    classify(callers.seen, found, on.farm, report)
    last = reconcile(hours=2)
    assert not last.trouble, last
    return {line["check"]: line["count"] for line in last.lines if line["count"]}


def _is_quiet(on: Served) -> bool:
    url = os.environ["REDIS_URL"]
    return all(
        holds_of(tenant_id=party.tenant_id, store_url=url).is_clean for party in on.parties.values()
    )


def ledger_rows() -> dict[str, Row]:
    """Every row by its request."""
    found = rows(
        "SELECT request_id::text, kind, status, usage_source, replica, input_tokens,"
        " output_tokens, spend_nanousd FROM tenants_usage"
    )
    return {one[0]: Row(*one[1:5], tokens=(one[5], one[6]), spend_nanousd=one[7]) for one in found}
