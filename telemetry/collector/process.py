"""The collector process: once a second, read engines, fold gateway reports, publish.

One collector is active by lease; others stand by and take over when it is gone. It owns nothing:
whatever it needs after a restart it reads from the store. Without the store it waits, and comes
back by itself.
"""

import asyncio
import logging
import os
import secrets
import signal
import ssl
import time
from dataclasses import dataclass, field

from redis.asyncio import Redis
from redis.exceptions import RedisError

from routing.contracts.endpoint_state import EndpointState
from routing.contracts.enums import ReplicaHealth
from routing.contracts.live import POOL_HISTORY
from routing.contracts.process import ProcessStatus
from routing.contracts.reach import reach_of
from routing.contracts.snapshot import Snapshot, SnapshotError, decode_snapshot
from routing.store import keys
from routing.store.clock import StoreClock
from routing.store.pooled import async_client
from routing.store.state import living_gateways
from telemetry.collector.fold import Overtaken, fold, recall
from telemetry.collector.kv_events import KvEvents
from telemetry.collector.lease import Lease
from telemetry.collector.publish import History, Round, clear_status, publish, write_status
from telemetry.collector.rules import (
    EngineSample,
    Track,
    advance,
    first_track,
    judged,
    with_resident_blocks,
)
from telemetry.collector.scrape import read_all
from telemetry.collector.windows import Closed, Filling, keep
from telemetry.collector.windows import fold as fold_window
from telemetry.collector.wire import as_bytes, optional_bytes
from telemetry.stats.figures import Spend, Trailing
from telemetry.stats.windows import key_of, minute_of

log = logging.getLogger(__name__)

NAME = "collector"
PERIOD_S = 1.0
BACKOFF_MAX_S = 5.0  # between tries while the store is away
STORE_TIMEOUT_S = 2.0
REPLICAS_MAX = 2048  # scraped by one collector; the first ones in order of name


@dataclass(slots=True)
class Memory:
    """What an active collector keeps between rounds; read anew after any doubt."""

    trailing: Trailing
    spend: Spend
    history: History
    frames_at_ms: int | None = None


@dataclass(slots=True)
class Collector:
    """One process. `store` is its only connection to the others.

    `tls` is whom it trusts to be an engine that is scraped over TLS.
    """

    store: Redis
    lease: Lease
    tls: ssl.SSLContext
    epoch: str = field(default_factory=lambda: secrets.token_hex(4))
    seq: int = 0
    clock: StoreClock = field(
        default_factory=lambda: StoreClock(time.monotonic, time.time_ns() // 1_000_000)
    )
    started_at_ms: int = field(default_factory=lambda: time.time_ns() // 1_000_000)
    snapshot: Snapshot | None = None
    tracks: dict[str, Track] = field(default_factory=dict)
    filling: dict[str, Filling] = field(default_factory=dict)
    closed: list[tuple[str, Closed]] = field(default_factory=list)
    memory: Memory | None = None
    kv_events: KvEvents = field(default_factory=KvEvents)

    async def run(self, stop: asyncio.Event) -> None:
        """Rounds until `stop`. Failures of the store are waited out."""
        failures = 0
        while not stop.is_set():
            began_s = time.monotonic()
            try:
                await self.round()
                failures = 0
            except (RedisError, OSError) as error:
                failures += 1
                self.memory = None
                log.warning("store: %s", error)
            wait_s = (
                PERIOD_S if not failures else min(BACKOFF_MAX_S, PERIOD_S * 2 ** (failures - 1))
            )
            await _sleep(stop, began_s + wait_s - time.monotonic())

    async def round(self) -> None:
        """One round: active when the lease is ours, else only a sign of life."""
        await self._read_clock()
        is_active = await self.lease.hold()
        if is_active:
            await self._refresh_snapshot()
            if self.memory is None:
                self.memory = await self._recall()
            scraped, _ = await asyncio.gather(self._scrape(), self._fold(self.memory))
            if self.memory is not None:
                await self._publish(self.memory, scraped)
            if self.closed:
                await keep(self.store, self.closed)
        else:
            self.memory = None
            self.tracks.clear()
            self.filling.clear()
            self.kv_events.close()
        await self._beat(is_active=is_active)

    async def _read_clock(self) -> None:
        """Gateways stamp by the store's clock, so we do: hosts' own clocks may differ."""
        seconds, micros = await self.store.time()
        self.clock.observe(seconds * 1000 + micros // 1000)

    async def close(self) -> None:
        """Let a standby take over at once."""
        self.kv_events.close()
        try:
            await self.lease.release()
            await clear_status(self.store, NAME, os.getpid())
        except (RedisError, OSError) as error:
            log.warning("store: %s", error)
        await self.store.aclose()

    async def _refresh_snapshot(self) -> None:
        """Load a newly published snapshot; a damaged one leaves the last good in use."""
        number = await self.store.get(keys.SNAPSHOT_NUMBER)
        if number is None or (self.snapshot and self.snapshot.number == int(number)):
            return
        raw = await self.store.get(keys.SNAPSHOT)
        if raw is None:
            return
        try:
            self.snapshot = decode_snapshot(as_bytes(raw))
        except SnapshotError as error:
            log.warning("kept the last good snapshot: %s", error)

    async def _recall(self) -> Memory:
        trailing, spend = await recall(self.store, self.clock.now_ms())
        history = History.of(optional_bytes(await self.store.hget(keys.LIVE, POOL_HISTORY)))
        return Memory(trailing=trailing, spend=spend, history=history)

    async def _scrape(self) -> dict[str, list[EndpointState]]:
        pools = self.snapshot.pools if self.snapshot else {}
        wanted = [
            (pool.id, endpoint)
            for pool in pools.values()
            if not pool.is_hosted  # a provider tells nobody its metrics
            for endpoint in sorted(pool.endpoints, key=lambda entry: entry.replica_id)
        ][:REPLICAS_MAX]
        before = self.tracks
        now_s = time.monotonic()
        tracks = {
            endpoint.replica_id: before.get(endpoint.replica_id)
            or first_track(endpoint.replica_id, pool, now_s)
            for pool, endpoint in wanted
        }
        outcomes = await read_all(
            [
                (
                    endpoint,
                    not tracks[endpoint.replica_id].state.engine_version,
                    self.tls if pools[pool].has_tls else None,
                )
                for pool, endpoint in wanted
            ]
        )
        now_s, now_ms = time.monotonic(), self.clock.now_ms()
        hung = await self._hung(now_ms)
        states: dict[str, list[EndpointState]] = {pool: [] for pool in pools}
        self.closed.clear()
        for (pool, endpoint), outcome in zip(wanted, outcomes, strict=True):
            track = advance(tracks[endpoint.replica_id], outcome, now_s, now_ms)
            tracks[endpoint.replica_id] = track
            states[pool].append(judged(track.state, hung))
            if outcome.sample is not None:
                self._fill(pool, endpoint.replica_id, outcome.sample, now_ms)
        self.tracks = tracks
        self.filling = {name: one for name, one in self.filling.items() if name in tracks}
        runs = {name: track.sample.run for name, track in tracks.items() if track.sample}
        blocks = self.kv_events.turn((endpoint for _, endpoint in wanted), runs, now_s)
        return {
            pool: [with_resident_blocks(state, blocks.get(state.replica_id)) for state in found]
            for pool, found in states.items()
        }

    def _fill(self, pool: str, replica_id: str, sample: EngineSample, now_ms: int) -> None:
        """Windows of its step times; lost with the collector, as the next ones come soon."""
        self.filling[replica_id], closed = fold_window(
            self.filling.get(replica_id), sample, replica_id, now_ms
        )
        if closed is not None:
            self.closed.append((pool, closed))

    async def _hung(self, now_ms: int) -> frozenset[str]:
        """Replicas that some living gateway waits for in vain."""
        flat = await self.store.hgetall(keys.GATEWAYS)
        known = {as_bytes(name): as_bytes(raw) for name, raw in flat.items()}
        return frozenset(
            replica_id
            for status in living_gateways(known, now_ms)
            for replica_id, why in status.open_breakers.items()
            if why == ReplicaHealth.HUNG
        )

    async def _fold(self, memory: Memory) -> None:
        now_ms = self.clock.now_ms()
        try:
            folded = await fold(self.store, now_ms)
        except Overtaken:
            log.warning("another collector folded meanwhile: reading the windows again")
            self.memory = None
            return
        for frame in folded.frames:
            memory.trailing.add(frame.at_ms // 1000, frame.rows)
            for delta in frame.rows:
                memory.spend.add(minute_of(frame.at_ms), key_of(delta), delta.spend_nanousd)
            memory.frames_at_ms = max(memory.frames_at_ms or 0, frame.at_ms)

    async def _publish(self, memory: Memory, pools: dict[str, list[EndpointState]]) -> None:
        now_ms = self.clock.now_ms()
        memory.trailing.expire(now_ms // 1000)
        memory.spend.expire(minute_of(now_ms))
        self.seq += 1
        tenants = self.snapshot.tenants if self.snapshot else {}
        found = Round(
            epoch=self.epoch,
            seq=self.seq,
            now_ms=now_ms,
            pools=pools,
            trailing=memory.trailing,
            spend=memory.spend,
            frames_at_ms=memory.frames_at_ms,
            slugs={entry.id: entry.slug for entry in tenants.values()},
        )
        await publish(self.store, found, memory.history)

    async def _beat(self, *, is_active: bool) -> None:
        now_ms = self.clock.now_ms()
        frames_at_ms = self.memory.frames_at_ms if self.memory else None
        status = ProcessStatus(
            name=NAME,
            pid=os.getpid(),
            started_at_ms=self.started_at_ms,
            at_ms=now_ms,
            lag_s=None if frames_at_ms is None else max(0.0, (now_ms - frames_at_ms) / 1000),
            note="active" if is_active else "standby",
        )
        await write_status(self.store, status)


async def _sleep(stop: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(max(0.0, seconds)):
            await stop.wait()
    except TimeoutError:
        return


async def serve(redis_url: str, tls: ssl.SSLContext) -> None:
    """Collect until SIGTERM or SIGINT."""
    store = async_client(redis_url, timeout_s=STORE_TIMEOUT_S)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    collector = Collector(store=store, lease=Lease(store), tls=tls)
    try:
        await collector.run(stop)
    finally:
        await collector.close()


def main() -> int:
    """Entry point; exit code 2 names a setting that is missing or cannot be used."""
    logging.basicConfig(
        level=os.environ.get("HEADRACE_LOG_LEVEL", "INFO"),
        format="%(asctime)s %(levelname)s %(name)s %(message)s",
    )
    redis_url = os.environ.get("REDIS_URL", "")
    if not redis_url:
        log.error("REDIS_URL is not set: start with `python3 manage.py up`, or set it")
        return 2
    try:
        reach = reach_of(os.environ.get("HEADRACE_PROVIDER_CA_FILE", ""), ())
    except OSError as error:
        log.error("HEADRACE_PROVIDER_CA_FILE cannot be used: %s", error)  # noqa: TRY400 - the line says it all
        return 2
    asyncio.run(serve(redis_url, reach.tls))
    return 0
