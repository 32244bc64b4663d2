"""What admission costs the store and the gateway, beside one plain INCR per limit in the same run.

A request reserves 13 dimensions in 7 counter keys and settles, with the real scripts over the
gateway's own connection and batches; the baseline counts the same 13 dimensions with INCR, which
enforces nothing. CPU is all of the store's threads and this process, so the figures hold while
other work shares the machine, which slows caches only. Tenants are spread over all buckets of a
store of the benchmark's own; each measurement goes on with the tenants after the last one's.

Batches of one are single calls. A batch of one tenant shares its counters too; one of many tenants
only the call, the lease entries and what their buckets share.
"""

import asyncio
import os
import tempfile
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import redis
import uvloop
from django.core.management.base import CommandError

from console.benchmarks.fixture import OUT_OF_REACH, bench_store
from console.benchmarks.harness import Figure, figure_of
from routing.contracts.enums import Dimension, LimitScope, SettleKind, WindowKind
from routing.contracts.ids import uuid7
from routing.contracts.snapshot import KeyEntry, Limit, TenantEntry, bucket_of
from routing.decision.limits import Group, amounts_in_order, groups_for
from routing.decision.types import Amounts
from routing.store import keys
from routing.store.batches import MAX_CALLS, MOST_PER_CALL
from routing.store.client import Callback, StoreConnection
from routing.store.clock import StoreClock
from routing.store.counters import StoreSession
from routing.store.plans import Plan, as_text
from routing.store.reservations import (
    LEGS,
    VERDICT,
    Reservations,
    group_edges,
)

MEASURED_CORE: Final = {0}
STORE_CORE: Final = {1}
MANY: Final = 10_000
FEW: Final = 100
SIZES: Final = (1, 4, 16, 64)  # requests a script call
WAITING: Final = 256  # requests under way when sizes are compared
IN_FLIGHT: Final = 64  # as a busy gateway has: what one loop turn asks shares a write
REPLY_TIMEOUT_S: Final = 30.0  # a crowded machine is no failure
NOT_AFTER_MS: Final = 60_000  # a crowded machine must not turn a request away
INFO_BYTES: Final = 600  # of a hold's description and of a usage event, as gateways write them
EVENT_BYTES: Final = 900
EPOCH: Final = 1
HELD: Final = Amounts(50, 500, 2_000_000, 550)
AMOUNTS: Final = amounts_in_order(HELD)
CHARGE: Final = {"req": 1, "in": 50, "out": 20, "usd": 90_000}
READY_S: Final = 10.0
RUN_MS: Final = 86_400_000  # longer than any run

_S, _D, _W = LimitScope, Dimension, WindowKind
LIMITS: Final = (
    *((_S.TENANT, dim, _W.MINUTE) for dim in (_D.REQUESTS, _D.INPUT_TOKENS, _D.OUTPUT_TOKENS)),
    (_S.TENANT, _D.SPEND_NANOUSD, _W.DAY),
    (_S.TENANT, _D.SPEND_NANOUSD, _W.MONTH),
    (_S.TENANT, _D.CONCURRENCY, _W.NOW),
    (_S.KEY, _D.REQUESTS, _W.MINUTE),
    (_S.KEY, _D.SPEND_NANOUSD, _W.MONTH),
    (_S.TENANT_MODEL, _D.OUTPUT_TOKENS, _W.MINUTE),
    (_S.TENANT_MODEL, _D.REQUESTS, _W.MINUTE),
)


@dataclass(frozen=True, slots=True)
class Cost:
    """CPU microseconds of one request in the store and in this process."""

    store_us: float
    own_us: float


@dataclass(frozen=True, slots=True)
class _Round:
    """Costs of the INCRs, and of (reserve, settle): few tenants and many as a gateway sends them,
    one tenant and many by the size of batches."""

    plain: Cost
    few: tuple[Cost, Cost]
    many: tuple[Cost, Cost]
    one_by: dict[int, tuple[Cost, Cost]]
    many_by: dict[int, tuple[Cost, Cost]]


@dataclass(frozen=True, slots=True)
class _Party:
    bucket: int
    plan: Plan


def run(*, is_quick: bool) -> list[Figure]:
    """All figures; a few seconds each round. Raises `CommandError` if the store does not work."""
    rounds, count = (3, 1_000) if is_quick else (7, 2_500)
    before = os.sched_getaffinity(0)
    with (
        tempfile.TemporaryDirectory(prefix="hr-bench-") as directory,
        bench_store(Path(directory)) as (url, pid),
    ):
        _pin(pid, STORE_CORE)
        _pin(0, MEASURED_CORE)
        try:
            return uvloop.run(_Bench(url, count).figures(rounds))
        finally:
            os.sched_setaffinity(0, before)


class _Bench:
    def __init__(self, url: str, count: int) -> None:
        self._url = url
        self._count = count
        self._turn = 0  # whose turn it is among the tenants of a measurement
        self._stats = redis.Redis.from_url(url)
        self._groups = _groups()
        self._dims = sum(len(group.dims) for group in self._groups)
        self._ids = 0
        self._info = as_text(b"i" * INFO_BYTES)
        self._event = b'{"e":"' + b"e" * EVENT_BYTES + b'"}'

    async def figures(self, rounds: int) -> list[Figure]:
        _open_buckets(self._url)
        clock = StoreClock(time.monotonic, time.time_ns() // 1_000_000)
        self._store = StoreConnection(
            self._url, name="bench", clock=clock, reply_timeout_s=REPLY_TIMEOUT_S
        )
        self._store.start()
        if not await self._store.wait_ready(READY_S):
            raise CommandError("the benchmark's store does not take commands")
        many = self._parties(MANY)
        self._count, count = MANY, self._count
        await self._reserve_and_settle(many)  # makes all counters
        self._count = count
        taken = [await self._round(many) for _ in range(rounds + 1)]
        await self._store.close()
        return self._named(taken[1:])  # the first round filled caches

    async def _round(self, many: list[_Party]) -> _Round:
        return _Round(
            plain=await self._measure(lambda: self._plain(MANY)),
            few=await self._reserve_and_settle(many[:FEW]),
            many=await self._reserve_and_settle(many),
            one_by=await self._by_batch(many[:1]),
            many_by=await self._by_batch(many),
        )

    async def _by_batch(self, parties: list[_Party]) -> dict[int, tuple[Cost, Cost]]:
        """Batches of each size, as many requests under way with each: single calls share writes."""
        return {
            size: await self._reserve_and_settle(parties, size, WAITING // size, WAITING)
            for size in SIZES
        }

    def _named(self, taken: list[_Round]) -> list[Figure]:
        us = f"CPU us a request, against {self._dims} INCRs"
        per_s = "requests a second and core"
        store = [(row.plain.store_us, _store_us(row.many)) for row in taken]
        gateway = [(row.plain.own_us, row.many[0].own_us + row.many[1].own_us) for row in taken]
        reserves = [(row.plain.store_us, row.many[0].store_us) for row in taken]
        settles = [(row.plain.store_us, row.many[1].store_us) for row in taken]
        flatness = [(_store_us(row.few), _store_us(row.many)) for row in taken]
        return [
            figure_of("admission_store_cpu_per_request", us, store),
            figure_of("admission_store_cpu_per_reserve", us, reserves),
            figure_of("admission_store_cpu_per_settle", us, settles),
            figure_of("admission_requests_per_store_core", per_s, _per_s(store)),
            figure_of("admission_gateway_cpu_per_request", us, gateway),
            figure_of("admission_requests_per_gateway_core", per_s, _per_s(gateway)),
            figure_of(
                "admission_cost_at_10000_tenants",
                "CPU us a request of the store, against 100 tenants",
                flatness,
            ),
            *self._by_size("one_tenant", [(row.plain, row.one_by) for row in taken]),
            *self._by_size("10000_tenants", [(row.plain, row.many_by) for row in taken]),
        ]

    def _by_size(
        self, whose: str, taken: list[tuple[Cost, dict[int, tuple[Cost, Cost]]]]
    ) -> list[Figure]:
        """Requests a second and store core by the size of batches, against that many INCRs."""
        return [
            figure_of(
                f"admission_requests_per_store_core_{whose}_by_{size}",
                f"requests a second and core, against {self._dims} INCRs each",
                _per_s([(plain.store_us, _store_us(by_size[size])) for plain, by_size in taken]),
            )
            for size in SIZES
        ]

    def _parties(self, count: int) -> list[_Party]:
        # Each window begins now and outlasts the run: what turning over costs is not measured.
        edges = tuple(
            (start, end + RUN_MS, end + 2 * RUN_MS) if end else (0, 0, 0)
            for start, end, _ in group_edges(self._groups, "UTC", self._store.clock.now_ms())
        )
        return [
            _Party(
                bucket_of(name),
                Plan(name, self._groups, edges, bucket=bucket_of(name), epoch=EPOCH),
            )
            for name in (f"{number + 1}" for number in range(count))
        ]

    async def _measure(self, work: Callable[[], Coroutine[Any, Any, None]]) -> Cost:
        store_s, own_s = self._store_cpu_s(), time.process_time()
        await work()
        own_s, store_s = time.process_time() - own_s, self._store_cpu_s() - store_s
        return Cost(1e6 * store_s / self._count, 1e6 * own_s / self._count)

    def _store_cpu_s(self) -> float:
        found = self._stats.info("cpu")
        return float(found["used_cpu_user"]) + float(found["used_cpu_sys"])

    async def _reserve_and_settle(
        self,
        parties: list[_Party],
        size: int = MOST_PER_CALL,
        calls: int = MAX_CALLS,
        in_flight: int = IN_FLIGHT,
    ) -> tuple[Cost, Cost]:
        for bucket in range(keys.BUCKETS):
            self._stats.delete(keys.bucket_usage(bucket))  # a ledger would keep it short
        self._reservations = Reservations(self._store)
        batches = self._reservations.batches
        batches.most_per_call, batches.max_calls = size, calls
        self._in_flight = in_flight
        held: list[tuple[_Party, str, bytes]] = []
        reserve = await self._measure(lambda: self._reserve(parties, held))
        return reserve, await self._measure(lambda: self._settle(held))

    async def _reserve(self, parties: list[_Party], held: list[tuple[_Party, str, bytes]]) -> None:
        not_after_ms = self._store.clock.now_ms() + NOT_AFTER_MS
        first, self._turn = self._turn, self._turn + self._count

        def send(number: int, done: Callback) -> None:
            party, name = parties[(first + number) % len(parties)], self._new_id()

            def answered(reply: object) -> None:
                if isinstance(reply, list) and reply[VERDICT] == b"OK":
                    held.append((party, name, reply[LEGS]))
                done(reply)

            self._reservations.reserve(
                bucket=party.bucket,
                request_id=name,
                not_after_ms=not_after_ms,
                info=self._info,
                amounts=AMOUNTS,
                plan=party.plan,
                done=answered,
            )

        await self._all(send, self._in_flight)

    async def _settle(self, held: list[tuple[_Party, str, bytes]]) -> None:
        def send(number: int, done: Callback) -> None:
            party, name, legs = held[number]
            self._reservations.settle(
                bucket=party.bucket,
                request_id=name,
                res_epoch=EPOCH,
                kind=SettleKind.SETTLED.value,
                charge=CHARGE,
                event=self._event,
                legs=legs,
                done=done,
                plan=party.plan.raw,
                amounts=AMOUNTS,
            )

        await self._all(send, self._in_flight)

    async def _plain(self, tenants: int) -> None:
        def send(number: int, done: Callback) -> None:
            for dim in range(self._dims - 1):
                self._store.command("INCR", f"plain:{number % tenants}:{dim}")
            self._store.command("INCR", f"plain:{number % tenants}:last", callback=done)

        await self._all(send)

    async def _all(self, send: Callable[[int, Callback], None], in_flight: int = IN_FLIGHT) -> None:
        """`count` of them, `in_flight` at a time. Raises `CommandError` if one is turned away."""
        loop = asyncio.get_running_loop()
        finished: asyncio.Future[None] = loop.create_future()
        state = {"next": 0, "left": self._count}

        def more() -> None:
            number = state["next"]
            if number < self._count:
                state["next"] = number + 1
                send(number, ended)

        def ended(reply: object) -> None:
            if not _is_served(reply) and not finished.done():
                finished.set_exception(CommandError(f"the store answered {reply!r}"))
            state["left"] -= 1
            if state["left"] == 0 and not finished.done():
                finished.set_result(None)
            more()

        for _ in range(in_flight):
            more()
        await finished

    def _new_id(self) -> str:
        self._ids += 1
        return uuid7(time.time_ns() // 1_000_000, self._ids)


def _is_served(reply: object) -> bool:
    return isinstance(reply, int) or (isinstance(reply, list) and reply[VERDICT] == b"OK")


def _groups() -> tuple[Group, ...]:
    subjects = {LimitScope.KEY: "k1", LimitScope.TENANT_MODEL: "m"}
    limits = tuple(
        Limit(scope, dimension, window, OUT_OF_REACH, subjects.get(scope, ""))
        for scope, dimension, window in LIMITS
    )
    tenant = TenantEntry("1", "bench", 0, "UTC", "bench", ("*",), limits)
    key = KeyEntry("k1", "1", "p1", "hr_bench", ("*",))
    return groups_for(tenant, key, "m", "standard")


def _open_buckets(url: str) -> None:
    session = StoreSession.open(url)
    buckets = range(keys.BUCKETS)
    session.begin(dict.fromkeys(buckets, EPOCH))
    session.ready(dict.fromkeys(buckets, (EPOCH, 0)))
    session.close()


def _store_us(costs: tuple[Cost, Cost]) -> float:
    return costs[0].store_us + costs[1].store_us


def _per_s(pairs: list[tuple[float, float]]) -> list[tuple[float, float]]:
    return [(1e6 / old, 1e6 / new) for old, new in pairs]


def _pin(pid: int, cores: set[int]) -> None:
    usable = os.sched_getaffinity(0) & cores
    if usable:  # a machine of one core measures unpinned
        os.sched_setaffinity(pid, usable)
