"""What ledger tests share: parties in the tables, a scripted gateway, and checks from raw data.

The gateway is the real scripts over a sync client: reserve and settle put into the streams exactly
what a gateway would. The checks read PostgreSQL and the store themselves, not through the product.
"""

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit
from uuid import uuid4

import msgspec
import redis
from django.db import connection

from routing.contracts.enums import (
    Dimension,
    LimitScope,
    RequestStatus,
    SettleKind,
    UsageSource,
    WindowKind,
    WorkClass,
)
from routing.contracts.ids import uuid7
from routing.contracts.snapshot import bucket_of
from routing.contracts.usage import UsageEvent, charge_of, encode_usage
from routing.decision.limits import Edges, Group
from routing.store import keys
from routing.store.calls import ReserveItem, SettleItem, reserve_argument, settle_argument
from routing.store.plans import Plan, as_text
from routing.store.reservations import group_edges
from routing.store.scripts import LEASE, RESERVE, SETTLE, run_script
from tenants.ledger.writer.database import Database
from tenants.ledger.writer.heartbeat import Progress
from tenants.ledger.writer.process import LedgerWriter
from tenants.models import ApiKey, Project, Tenant
from tests.accounting import fields
from tests.stack import wait_until

ROOT = Path(__file__).resolve().parent.parent
TRACKED = (
    Dimension.REQUESTS,
    Dimension.INPUT_TOKENS,
    Dimension.OUTPUT_TOKENS,
    Dimension.SPEND_NANOUSD,
)


@dataclass(frozen=True)
class Party:
    tenant_id: int
    key_id: int
    project_id: int
    timezone: str = "UTC"

    @property
    def bucket(self) -> int:
        return bucket_of(str(self.tenant_id))


def make_party(slug: str = "acme", timezone: str = "UTC") -> Party:
    tenant = Tenant.objects.create(
        slug=slug, name=slug, cache_salt="salt", timezone=timezone, allowed_models=["*"]
    )
    project = Project.objects.create(tenant=tenant, slug="default", name="Default")
    key = ApiKey.objects.create(
        tenant=tenant, project=project, name="main", prefix="hr_x", digest=uuid4().hex
    )
    return Party(tenant.pk, key.pk, project.pk, timezone)


def day_groups(limit_nanousd: int = -1) -> tuple[Group, ...]:
    """The tenant's day with all four dimensions, and its concurrency."""
    dims = tuple((d, limit_nanousd if d is TRACKED[3] else -1) for d in TRACKED)
    return (
        Group(LimitScope.TENANT, WindowKind.DAY, "", dims),
        Group(LimitScope.TENANT, WindowKind.NOW, "", ((Dimension.CONCURRENCY, -1),)),
    )


@dataclass
class Ticket:
    """A reservation as its gateway remembers it."""

    request_id: str
    party: Party
    epoch: int
    legs: list[list[object]]
    at_ms: int


@dataclass
class ScriptedGateway:
    """Reserve and settle through the real scripts, without the asynchronous machinery."""

    client: redis.Redis
    groups: tuple[Group, ...] = field(default_factory=day_groups)
    lease_ms: int = 15_000
    edges: tuple[Edges, ...] | None = None  # windows of the test's own length; None: the calendar's

    @property
    def run_id(self) -> str:
        return keys.run_name(str(self.client.info("server")["run_id"]))

    def now_ms(self) -> int:
        seconds, micros = self.client.time()
        return int(seconds) * 1000 + int(micros) // 1000

    def epoch(self, party: Party) -> int:
        return int(self.client.hget(keys.bucket_meta(party.bucket), "epoch") or 0)

    def ask(self, party: Party, request_id: str, held: tuple[int, ...]) -> Any:
        now_ms = self.now_ms()
        edges = self.edges or group_edges(self.groups, party.timezone, now_ms)
        tenant_id, epoch = str(party.tenant_id), self.epoch(party)
        plan = Plan(tenant_id, self.groups, edges, bucket=party.bucket, epoch=epoch)
        item = ReserveItem(
            plan.raw,
            request_id,
            now_ms + 1_000,
            self.lease_ms,
            self.info_of(party, request_id, held),
            held,
            as_text(plan.legs(held)),
        )
        argument = reserve_argument(self.run_id, (item,))
        return run_script(self.client, RESERVE, keys.bucket_meta(party.bucket), argument)[0]

    def info_of(self, party: Party, request_id: str, held: tuple[int, ...]) -> msgspec.Raw:
        """What travels with the hold; only sweeping reads it."""
        return as_text(b"info")

    def reserve(self, party: Party, held: tuple[int, ...] = (1, 100, 100, 1_000, 1, 0)) -> Ticket:
        at_ms = self.now_ms()
        request_id = uuid7(at_ms, uuid4().int)
        answer = self.ask(party, request_id, held)
        assert answer[0] == b"OK", answer
        return Ticket(request_id, party, answer[1], msgspec.msgpack.decode(answer[5]), at_ms)

    def register(self, ticket: Ticket) -> int:
        """What a heartbeat does in a new epoch; returns the script's verdict for the item."""
        item = [ticket.request_id, 0, ticket.epoch, "info", ticket.legs]
        argument = msgspec.msgpack.encode(
            (
                keys.bucket_tag(ticket.party.bucket),
                self.run_id,
                self.now_ms() + 1_000,
                self.lease_ms,
                [item],
            )
        )
        meta = keys.bucket_meta(ticket.party.bucket)
        answer: Any = run_script(self.client, LEASE, meta, argument)
        assert answer[0] == b"OK", answer
        ticket.epoch = answer[1]
        return int(answer[5][0])

    def settle(
        self, ticket: Ticket, kind: SettleKind = SettleKind.SETTLED, **amounts: Any
    ) -> bytes:
        event = event_of(ticket, **amounts)
        answer = self.send(ticket, kind, event)
        assert answer[0] in (b"OK", b"ALIVE"), answer
        return answer[0]

    def send(self, ticket: Ticket, kind: SettleKind, event: UsageEvent) -> Any:
        item = SettleItem(
            keys.bucket_tag(ticket.party.bucket),
            None,
            ticket.request_id,
            ticket.epoch,
            kind.value,
            charge_of(kind, event),
            as_text(encode_usage(event)),
            as_text(msgspec.msgpack.encode(ticket.legs)),
        )
        argument = settle_argument(self.run_id, (item,))
        return run_script(self.client, SETTLE, keys.bucket_meta(ticket.party.bucket), argument)[0]

    def serve(self, party: Party, **amounts: Any) -> Ticket:
        """One whole request."""
        ticket = self.reserve(party)
        self.settle(ticket, **amounts)
        return ticket

    def day_counters(self, party: Party) -> dict[str, int]:
        """The tenant's day counter of the present epoch, empty when there is none."""
        tag, epoch = keys.bucket_tag(party.bucket), self.epoch(party)
        names = list(self.client.scan_iter(f"{tag}:{epoch}:w:{party.tenant_id}:tenant::d:*"))
        found: dict[str, int] = {}
        for name in names:
            for dim, value in fields(self.client, name).items():
                found[dim] = found.get(dim, 0) + value
        return found

    def min_counter(self) -> int:
        """The least value of any counter: never below 0 (A6)."""
        values = [
            value
            for name in self.client.scan_iter("{b*:w:*")
            for value in fields(self.client, name).values()
        ]
        return min(values, default=0)


def event_of(ticket: Ticket, **fields: Any) -> UsageEvent:
    party = ticket.party
    base: dict[str, Any] = {
        "request_id": ticket.request_id,
        "tenant_id": str(party.tenant_id),
        "key_id": str(party.key_id),
        "project_id": str(party.project_id),
        "model_asked": "alpha-8b",
        "model": "alpha-8b",
        "status": RequestStatus.OK,
        "usage_source": UsageSource.REPORTED,
        "work_class": WorkClass.STANDARD,
        "policy": "main v1",
        "price_version": 1,
        "gateway_id": "g0",
        "started_at_ms": ticket.at_ms,
        "ended_at_ms": ticket.at_ms + 50,
        "pool": "p1",
        "replica": "r1",
        "region": "eu",
        "input_tokens": 10,
        "cached_tokens": 4,
        "output_tokens": 5,
        "spend_nanousd": 300,
        "attempts": 1,
        "http_status": 200,
        "legs": ticket.legs,
    }
    return UsageEvent(**{**base, **fields})


def make_writer(stop: threading.Event | None = None) -> LedgerWriter:
    return LedgerWriter(
        store_url=os.environ["REDIS_URL"],
        database=Database.from_settings(),
        stop=stop or threading.Event(),
        progress=Progress(),
    )


def cycle(count: int = 1) -> None:
    """A writer of its own does what is due, `count` times, as a process that is then killed."""
    writer = make_writer()
    try:
        for _ in range(count):
            writer.cycle()
    finally:
        writer.close()


@contextmanager
def running_writer() -> Iterator[LedgerWriter]:
    """The real loop, in a thread."""
    stop = threading.Event()
    writer = make_writer(stop)
    thread = threading.Thread(target=writer.run, daemon=True)
    thread.start()
    try:
        yield writer
    finally:
        stop.set()
        thread.join(timeout=20)
        assert not thread.is_alive()


def start_ledger(stderr: Any = subprocess.PIPE) -> subprocess.Popen[bytes]:
    """The ledger's own process, on the test's database."""
    address = urlsplit(os.environ["DATABASE_URL"])
    name = str(connection.settings_dict["NAME"])
    url = urlunsplit(address._replace(path=f"/{name}"))
    return subprocess.Popen(
        [sys.executable, "-m", "django", "ledger"],
        cwd=ROOT,
        env={
            **os.environ,
            "DATABASE_URL": url,
            "DJANGO_SETTINGS_MODULE": "console.project.settings",
        },
        stderr=stderr,
    )


@contextmanager
def ledger_process(stderr: Any = subprocess.PIPE) -> Iterator[subprocess.Popen[bytes]]:
    """The same, killed at the end."""
    process = start_ledger(stderr)
    try:
        yield process
    finally:
        process.kill()
        process.communicate(timeout=20)


def until(condition: Any, timeout_s: float = 20.0, what: str = "condition") -> Any:
    return wait_until(condition, timeout_s, what)


def is_open(client: redis.Redis, party: Party, epoch: int | None = None) -> bool:
    meta = client.hgetall(keys.bucket_meta(party.bucket))
    is_ready = meta.get(b"state") == b"ready"
    return is_ready and (epoch is None or int(meta[b"epoch"]) == epoch)


# -- raw truth --------------------------------------------------------------------------------


def rows(sql: str, *params: Any) -> list[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(sql, params)
        return list(cursor.fetchall())


def row_count() -> int:
    return int(rows("SELECT count(*) FROM tenants_usage")[0][0])


def ledger_sums(party: Party) -> dict[str, int]:
    """Rows plus adjustments of a tenant, by dimension: what its counters must say (A5)."""
    found = rows(
        "SELECT sum(req), sum(inp), sum(outp), sum(usd) FROM ("
        " SELECT (kind <> 'v')::int AS req, input_tokens AS inp, output_tokens AS outp,"
        "  spend_nanousd AS usd FROM tenants_usage WHERE tenant_id = %s"
        " UNION ALL SELECT requests, input_tokens, output_tokens, spend_nanousd"
        "  FROM tenants_usageadjustment WHERE tenant_id = %s) AS lines",
        party.tenant_id,
        party.tenant_id,
    )[0]
    return dict(zip(("req", "in", "out", "usd"), (int(part or 0) for part in found), strict=True))


def rollup_sums(party: Party, grain: str) -> dict[str, int]:
    found = rows(
        "SELECT sum(requests), sum(input_tokens), sum(output_tokens), sum(spend_nanousd)"
        " FROM tenants_usagerollup WHERE tenant_id = %s AND grain = %s",
        party.tenant_id,
        grain,
    )[0]
    return dict(zip(("req", "in", "out", "usd"), (int(part or 0) for part in found), strict=True))


def assert_exact(gateway: ScriptedGateway, party: Party) -> dict[str, int]:
    """Counters, rollups and rows say the same, nothing is held; returns the sums."""
    sums = ledger_sums(party)
    counters = gateway.day_counters(party)
    assert {dim: counters.get(dim, 0) for dim in sums} == sums
    assert {dim: value for dim, value in counters.items() if dim.endswith("_h") and value} == {}
    for grain in "mhd":
        assert rollup_sums(party, grain) == sums, grain
    assert gateway.min_counter() >= 0
    return sums
