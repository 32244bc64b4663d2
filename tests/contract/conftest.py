"""One gateway for the module's official clients: a simulated engine, and a scripted upstream."""

import os
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass

import anthropic
import httpx
import httpx2
import openai
import pytest
import redis

from routing.contracts.enums import Dimension, WindowKind
from routing.contracts.snapshot import bucket_of
from routing.contracts.usage import UsageEvent
from tests.engines import MODEL, engine
from tests.stack import (
    ACME_KEY,
    FREE,
    GatewayProcess,
    held,
    limit,
    make_snapshot,
    model,
    pool,
    start_gateway,
    tenant,
    usage_events,
    wait_until,
)
from tests.upstream import UpstreamThread


@dataclass
class Served:
    """`alpha-8b` is the simulated engine, `scripted` plays what a test plans at `upstream`.

    acme has no limits, globex a budget that pays for nothing.
    """

    gateway: GatewayProcess
    upstream: UpstreamThread
    store: "redis.Redis[bytes]"
    http: httpx.Client
    http2: httpx2.Client  # what newer clients take

    def openai(self, key: str = ACME_KEY, **options: int) -> openai.OpenAI:
        """The official client, on our base URL."""
        options = {"max_retries": 0} | options
        url = f"{self.gateway.url}/v1"
        return openai.OpenAI(api_key=key, base_url=url, http_client=self.http, **options)  # type: ignore[arg-type]

    def anthropic(self, key: str = ACME_KEY, **options: int) -> anthropic.Anthropic:
        """The same of Anthropic."""
        options = {"max_retries": 0} | options
        return anthropic.Anthropic(
            api_key=key,
            base_url=self.gateway.url,
            http_client=self.http2,
            **options,  # type: ignore[arg-type]
        )

    def row(self, request_id: str | None) -> UsageEvent:
        """The ledger's event of a request, once it is there."""

        def found() -> UsageEvent | None:
            events = (event for _, event in usage_events(self.store, bucket_of("acme")))
            return next((event for event in events if event.request_id == request_id), None)

        event: UsageEvent = wait_until(found, 5, f"row of {request_id}")
        return event

    def last_row(self, operation: str) -> UsageEvent:
        """The newest event of an operation, once all have ended: not all tell a stream's id."""
        bucket = bucket_of("acme")
        wait_until(lambda: not held(self.store, bucket), 5, "every call has ended")
        events = [event for _, event in usage_events(self.store, bucket)]
        return next(one for one in reversed(events) if one.operation == operation)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    url = os.environ["REDIS_URL"]
    with (
        closing(redis.Redis.from_url(url)) as store,
        engine("--time-scale", "50") as simulated,
        UpstreamThread() as upstream,
        httpx.Client(trust_env=False) as http,
        httpx2.Client(trust_env=False) as http2,
    ):
        store.flushall()
        penniless = (limit(Dimension.SPEND_NANOUSD, 1, WindowKind.DAY),)
        snapshot = make_snapshot(
            [],
            tenants={"acme": tenant("acme"), "globex": tenant("globex", penniless)},
            models={
                "alpha-8b": model("alpha-8b", ("p1",), bytes_per_token=2.0),
                "scripted": model("scripted", ("p2",)),
                "free-3b": model("free-3b", ("p2",), price=FREE),
            },
            pools={
                "p1": pool("p1", [("127.0.0.1", simulated.port)], MODEL),
                "p2": pool("p2", [upstream.address], "scripted"),
            },
        )
        with start_gateway(snapshot, url, tmp_path_factory.mktemp("gateway")) as gateway:
            try:
                yield Served(gateway, upstream, store, http, http2)
            finally:
                gateway.process.kill()
                gateway.process.wait(10)
