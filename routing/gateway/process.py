"""One gateway process: its parts, its loops, and what it says of itself."""

import asyncio
import contextlib
import logging
import os
import time
from pathlib import Path

import hiredis
import msgspec

from routing.contracts.endpoint_state import decode_pool_state
from routing.contracts.enums import StoreMode
from routing.contracts.process import GatewayStatus, decode_gateway_status, encode_status
from routing.contracts.reach import reach_of
from routing.contracts.slices import encode_frame
from routing.contracts.snapshot import Snapshot
from routing.decision.filters import SLOW_START_S
from routing.gateway.account import Accountant
from routing.gateway.adapters import AdapterWatch
from routing.gateway.calibration import SHARE_EVERY_S
from routing.gateway.config import GatewayConfig
from routing.gateway.credits import Credits
from routing.gateway.fleet import Fleet
from routing.gateway.hooks.keeper import Hooks
from routing.gateway.journal import Journal
from routing.gateway.metrics import Gauges, exposition
from routing.gateway.overrides import OverrideKeeper, Overrides
from routing.gateway.overrides import read_disk as read_overrides
from routing.gateway.probe import Prober
from routing.gateway.reserve import Reserver
from routing.gateway.server import Listener, Readiness
from routing.gateway.snapshot import SnapshotKeeper, write_disk
from routing.gateway.stats import Stats
from routing.gateway.sweep import Sweeper
from routing.gateway.tls import LOOK_S, FrontTls
from routing.gateway.trace import open_spans
from routing.gateway.walk import Walk
from routing.store import keys
from routing.store.client import StoreAwayError
from routing.store.clock import StoreClock
from routing.store.cluster import open_nudges, open_store
from routing.store.reservations import Reservations
from routing.store.streams import append_frame

log = logging.getLogger(__name__)

DEADLINE_TICK_S = 0.1
SNAPSHOT_POLL_S = 0.5
STATUS_EVERY_S = 1.0
STATUS_KEPT_MS = 3_600_000
ALIVE_MS = 10_000
_NUDGES = (b"snapshot", b"overrides")


class Gateway:
    """The parts of this process, and its state as the outside sees it."""

    def __init__(self, config: GatewayConfig, snapshot: Snapshot | None) -> None:
        """Construct inside the loop. `snapshot` is the last good one from disk."""
        self.config = config
        self.started_ms = int(time.time() * 1000)
        self.is_draining = False
        self.clock = StoreClock(time.monotonic, self.started_ms)
        name = config.gateway_id
        self.store = open_store(config.redis_url, name=name, clock=self.clock)
        self.nudges = open_nudges(
            config.redis_url,
            name=f"{name}-nudges",
            clock=StoreClock(time.monotonic, self.started_ms),
            channel=keys.NUDGES,
            heard=self._nudged,
        )
        self.journal = Journal(config.journal_dir, gateway_id=name, incarnation=config.incarnation)
        reservations = Reservations(self.store)
        self.accountant = Accountant(reservations, self.journal, self.clock)
        self.reserver = Reserver(reservations, self.accountant, self.clock)
        self.sweeper = Sweeper(reservations, self.clock, owner=f"{name}:{config.incarnation}")
        owner = f"{name}:{config.incarnation}"
        self.credits = Credits(self.store, owner, self.clock.now_ms, self._share_of_limits)
        self.fleet = Fleet(
            config.pepper, reach_of(config.provider_ca_file, config.private_providers)
        )
        self.hooks = Hooks(
            config.pepper,
            reach_of(config.provider_ca_file, config.private_hooks),
            self.clock.now_ms,
        )
        self.stats = Stats()
        self.prober = Prober(self.fleet)
        self.adapters = AdapterWatch(self.fleet)
        self.keeper = SnapshotKeeper(self.store, self._take_snapshot)
        self.overrides = Overrides()
        self.override_keeper = OverrideKeeper(
            self.store, self.overrides, lambda raw: self._keep_on_disk(config.overrides_path, raw)
        )
        self.override_keeper.restore(read_overrides(config.overrides_path), self.started_ms)
        self.spans = open_spans(config)
        self.tls = FrontTls(config.tls) if config.tls is not None else None
        self.walk: Walk | None = None
        self.listener: Listener | None = None
        self.stopping = asyncio.Event()
        self.has_snapshot = asyncio.Event()
        self._poll_now = asyncio.Event()
        self.disk: asyncio.Future[None] | None = None
        if snapshot is not None:
            self._install(snapshot)
            self.keeper.number = snapshot.number

    # -- readiness and the admin port

    @property
    def readiness(self) -> Readiness:
        """This process, as the pages that ask see it."""
        return self

    @property
    def why_not_ready(self) -> str:
        """Empty when it serves."""
        if self.is_draining:
            return "draining"
        if self.walk is None:
            return "no snapshot yet"
        if self.listener is None:
            return "the port is not open yet"
        if self.mode is StoreMode.CLOSED and not self.store.is_split:
            return "the store is away and the policy's outage time has passed"
        return ""

    @property
    def mode(self) -> StoreMode:
        """How requests are admitted now."""
        if self.walk is None:
            return StoreMode.CLOSED
        return self.reserver.mode(self.walk.snapshot.policy.outage)

    def _share_of_limits(self) -> float:
        """Part of a pool's or the fleet's limit that is this gateway's while the store is away."""
        if self.walk is None or self.mode is not StoreMode.DEGRADED:
            return 0.0
        return self.walk.snapshot.policy.outage.share_ratio / self.reserver.gateways

    def metrics(self) -> bytes:
        """The metrics page."""
        walk, listener = self.walk, self.listener
        gauges = Gauges(
            in_flight=len(walk.live) if walk else 0,
            connections=len(listener.connections) if listener else 0,
            snapshot_number=walk.snapshot.number if walk else 0,
            journal_pending=self.accountant.pending,
            store_mode=self.mode,
            is_ready=not self.why_not_ready,
            buffered_bytes=listener.buffered_bytes if listener else 0,
        )
        returns = self.reserver.returns.totals + self.credits.returns.totals
        spans = self.spans.counts if self.spans is not None else {}
        return exposition(self.stats, gauges, self.fleet.endpoints, returns, spans, self.hooks)

    def drain(self) -> None:
        """Begin to shut down: not ready at once, what is running may finish."""
        if not self.is_draining:
            log.info("draining")
            self.is_draining = True
            self.stopping.set()

    # -- snapshot

    def _nudged(self, channel: bytes, payload: bytes) -> None:
        if payload in _NUDGES:
            self._poll_now.set()

    def _take_snapshot(self, snapshot: Snapshot, raw: bytes) -> None:
        self._install(snapshot)
        self._keep_on_disk(self.config.snapshot_path, raw)
        self.send_status()
        log.info("snapshot %d in force, policy %s", snapshot.number, snapshot.policy.label)

    def _install(self, snapshot: Snapshot) -> None:
        self.fleet.take_snapshot(snapshot, time.monotonic(), self.clock.now_ms())
        self.stats.take_snapshot(snapshot)
        self.credits.take_snapshot(snapshot)
        self.hooks.take_snapshot(snapshot, is_serving=self.listener is not None)
        if self.walk is None:
            self.walk = Walk(
                self.config,
                snapshot,
                self.fleet,
                self.reserver,
                self.accountant,
                self.stats,
                self.clock.now_ms,
                self.credits,
                self.overrides,
                self.spans,
                hooks=self.hooks,
            )
        self.walk.snapshot = snapshot
        failures = snapshot.policy.failures
        self.walk.budgets.per_success = failures.retry_per_success
        self.walk.budgets.burst = failures.retry_burst
        self.has_snapshot.set()

    def _keep_on_disk(self, path: Path, raw: bytes) -> None:
        """Write in a thread; of several in a row the last one wins."""
        loop = asyncio.get_running_loop()
        before = self.disk

        async def write() -> None:
            if before is not None:
                await asyncio.gather(before, return_exceptions=True)
            try:
                await loop.run_in_executor(None, write_disk, path, raw)
            except OSError as error:
                log.warning("%s cannot be kept on disk: %s", path.name, error)

        self.disk = asyncio.ensure_future(write())

    # -- loops

    async def watch_snapshot(self) -> None:
        """Poll, sooner when nudged."""
        while True:
            await self.keeper.poll()
            if await self.override_keeper.poll():
                self.send_status()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(SNAPSHOT_POLL_S):
                    await self._poll_now.wait()
            self._poll_now.clear()

    async def watch_deadlines(self) -> None:
        """The one timer of all running requests."""
        while True:
            await asyncio.sleep(DEADLINE_TICK_S)
            if self.walk is not None:
                self.walk.check_deadlines(time.monotonic())

    async def share_estimates(self) -> None:
        """Bytes per token that all gateways learn from what engines report."""
        while True:
            if self.walk is not None:
                await self.walk.calibration.share(self.store, self.clock.now_ms())
            await asyncio.sleep(SHARE_EVERY_S)

    async def watch_certificate(self) -> None:
        """Renewals of the callers' port."""
        while True:
            await asyncio.sleep(LOOK_S)
            if self.tls is not None:
                self.tls.look()

    async def report(self) -> None:
        """Each second: status, slices, pool states, idle connections, probes."""
        while True:
            now_s = time.monotonic()
            if self.listener is not None:
                self.listener.sweep(now_s)
            self.fleet.close_idle(now_s)
            self.hooks.close_idle(now_s)
            self.fleet.compare(now_s)
            self.prober.turn(now_s)
            self.adapters.turn(now_s)
            self.send_status()
            self.send_frame()
            self._send_returns()
            await self._read_states()
            await self._count_gateways()
            await asyncio.sleep(STATUS_EVERY_S)

    def send_status(self) -> None:
        """Tell the store what this process is."""
        if not self.store.is_ready:
            return
        status = encode_status(self.status())
        self.store.command("HSET", keys.GATEWAYS, self.config.gateway_id, status)

    def status(self) -> GatewayStatus:
        """What this process says of itself."""
        walk = self.walk
        broken = {
            name: endpoint.candidate.breaker.reason
            for name, endpoint in self.fleet.endpoints.items()
            if not endpoint.candidate.breaker.allows()
        }
        return GatewayStatus(
            gateway_id=self.config.gateway_id,
            incarnation=self.config.incarnation,
            pid=os.getpid(),
            host=self.config.address,
            port=self.config.port,
            admin_port=self.config.admin_port,
            started_at_ms=self.started_ms,
            at_ms=self.clock.now_ms(),
            snapshot_number=walk.snapshot.number if walk else 0,
            policy=walk.snapshot.policy.label if walk else "",
            state="draining" if self.is_draining else ("ready" if walk else "starting"),
            store_mode=self.mode,
            in_flight=len(walk.live) if walk else 0,
            journal_pending=self.accountant.pending,
            is_journal_behind=self.journal.is_behind,
            version=self.config.version,
            open_breakers=broken,
            store_away_s=self.reserver.store_away_s if walk else None,
            trouble=self.journal.trouble,
            store_away_max_s=walk.snapshot.policy.outage.max_s if walk else None,
            overrides=self.overrides.version,
            hooks=self.hooks.reports(time.monotonic()),
            slow_start_s=walk.snapshot.policy.slow_start_s if walk else SLOW_START_S,
        )

    def status_page(self) -> bytes:
        """The status as JSON: what the store cannot pass on while it is away."""
        return msgspec.json.encode(self.status())

    def send_frame(self) -> None:
        """Hand on the counts since the last frame."""
        if not self.store.is_ready:
            return  # counts go on adding up until it is back
        frame = self.stats.frame(
            self.config.gateway_id, self.config.incarnation, self.clock.now_ms()
        )
        append_frame(self.store, encode_frame(frame))

    def _send_returns(self) -> None:
        if self.store.is_ready:
            self.reserver.returns.flush(self.store.command, self.clock.now_ms())

    async def _read_states(self) -> None:
        for pool in self.fleet.pools:
            try:
                raw = await self.store.call("GET", keys.pool_state(pool))
                if isinstance(raw, bytes):
                    state = decode_pool_state(raw)
                    self.fleet.take_report(state, time.monotonic(), self.clock.now_ms())
            except (StoreAwayError, hiredis.ReplyError, msgspec.MsgspecError):
                continue  # the last report ages, and is then not used

    async def _count_gateways(self) -> None:
        """How many gateways share the limits; entries of long-gone ones are removed."""
        try:
            found = await self.store.call("HGETALL", keys.GATEWAYS)
        except (StoreAwayError, hiredis.ReplyError):
            return
        if not isinstance(found, list):
            return
        now_ms = self.clock.now_ms()
        alive = 0
        for field, raw in zip(found[::2], found[1::2], strict=True):
            try:
                age_ms = now_ms - decode_gateway_status(raw).at_ms
            except msgspec.MsgspecError:
                continue  # of another version of this program
            if age_ms > STATUS_KEPT_MS:
                self.store.command("HDEL", keys.GATEWAYS, field)
            alive += age_ms < ALIVE_MS
        self.reserver.gateways = self.reserver.returns.promises.gateways = max(1, alive)
        self.credits.returns.promises.gateways = self.reserver.gateways
