"""In which order tenants' queued requests go to a pool: by the work they have had, not by arrival.

Work is `w_p * uncached input + w_c * cached input + w_q * output` (VTC, arXiv 2401.00588). One
queue a pool and class, one line a tenant. `Vtc` sends the tenant that had least, `Dlpm` (arXiv
2501.14312) lets cache hits go first within a deficit. Both charge an estimate at dispatch and the
difference at the end.
"""

import heapq
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

QUANTUM: Final = 5_000.0  # work units that a round of DLPM gives a tenant of weight 1
EXPIRE_S: Final = 3_600.0  # after so long without work a tenant's counter is forgotten


class Rates(NamedTuple):
    """Work of a token, in units of one that is prefilled: prefilled, found in the cache, made."""

    uncached: float = 1.0
    cached: float = 0.1
    output: float = 2.0


PRIOR: Final = Rates()


def work_of(
    uncached_tokens: int, cached_tokens: int, output_tokens: int, rates: Rates = PRIOR
) -> float:
    """Work of a request, in units of one prefilled token."""
    return (
        rates.uncached * uncached_tokens
        + rates.cached * cached_tokens
        + rates.output * output_tokens
    )


def output_rate(t0_s: float, c_s: float, d_s: float, context: float, decodes: float) -> float:
    """Calibrated `w_q/w_p = (c + d*context + t0/D) / c`, held within 2..10."""
    return min(10.0, max(2.0, (c_s + d_s * context + t0_s / max(1.0, decodes)) / c_s))


class Queued(NamedTuple):
    """A request that waits; `deadline_s` is the latest instant at which it may still start."""

    request_id: str
    tenant: str
    work: float
    arrived_s: float
    deadline_s: float


class Pick(NamedTuple):
    """Who goes next; `choose` changes nothing, so a caller may look without sending."""

    tenant: str
    request: Queued


@dataclass(slots=True)
class Lines:
    """Who waits: a line a tenant, by deadline, then arrival.

    A request that has waited for more than half of its time goes first inside its tenant; one whose
    deadline has passed is handed out by `expired`, never left.
    """

    _lines: dict[str, list[tuple[float, float, str, Queued]]] = field(default_factory=dict)
    _oldest: dict[str, list[tuple[float, str, Queued]]] = field(default_factory=dict)
    _waiting: set[str] = field(default_factory=set)

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._waiting

    @property
    def tenants(self) -> Iterable[str]:
        """Who has something queued, in the order in which each came."""
        return self._lines.keys()

    def put(self, one: Queued) -> None:
        """Queue it; ids are unique."""
        self._waiting.add(one.request_id)
        line = self._lines.setdefault(one.tenant, [])
        heapq.heappush(line, (one.deadline_s, one.arrived_s, one.request_id, one))
        half_s = one.arrived_s + (one.deadline_s - one.arrived_s) / 2
        heapq.heappush(self._oldest.setdefault(one.tenant, []), (half_s, one.request_id, one))

    def take(self, one: Queued) -> None:
        """It was sent, or its caller left."""
        self._waiting.discard(one.request_id)
        if one.tenant in self._lines and self._is_over(one.tenant):
            del self._lines[one.tenant], self._oldest[one.tenant]

    def head(self, tenant: str, now_s: float) -> Queued:
        """Who of a tenant goes first. Raises `KeyError` for one that has nothing queued."""
        oldest = self._oldest[tenant]
        while oldest and oldest[0][1] not in self._waiting:
            heapq.heappop(oldest)
        if oldest and oldest[0][0] <= now_s:
            return oldest[0][2]
        return self._lines[tenant][0][3]

    def expired(self, now_s: float) -> list[Queued]:
        """Take out everything whose deadline has passed."""
        found: list[Queued] = []
        while late := [line[0][3] for line in self._lines.values() if line[0][0] < now_s]:
            for one in late:
                self.take(one)
            found += late
        return found

    def _is_over(self, tenant: str) -> bool:
        line = self._lines[tenant]
        while line and line[0][2] not in self._waiting:
            heapq.heappop(line)
        return not line


@dataclass(slots=True)
class Vtc:
    """Work that each tenant had, over its weight; the queued one with the least goes next.

    A tenant that comes back from idle is lifted to the least of those queued, or to whoever was
    sent last: it cannot save up. `weights` are positive; 1 for others.
    """

    weights: Mapping[str, float] = field(default_factory=dict)
    counters: dict[str, float] = field(default_factory=dict)
    _last: float = 0.0
    _seen_s: dict[str, float] = field(default_factory=dict)

    def joined(self, tenant: str, lines: Lines, now_s: float) -> None:
        """Call before its request is put: lifts a tenant that had nothing queued."""
        self._seen_s[tenant] = now_s
        if tenant in lines.tenants:
            return
        floor = min((self.counters.get(name, 0.0) for name in lines.tenants), default=self._last)
        self.counters[tenant] = max(self.counters.get(tenant, 0.0), floor)

    def choose(self, lines: Lines, now_s: float) -> Pick | None:
        """The next request, or None when nothing is queued; equals by name."""
        if not len(lines):
            return None
        tenant = min(lines.tenants, key=lambda name: (self.counters.get(name, 0.0), name))
        return Pick(tenant, lines.head(tenant, now_s))

    def sent(self, tenant: str, work: float) -> None:
        """Charge what was dispatched."""
        self._last = self.counters.get(tenant, 0.0)
        self.counters[tenant] = self._last + work / self.weights.get(tenant, 1.0)

    def settled(self, tenant: str, estimated: float, used: float) -> None:
        """Correct the charge to what was used."""
        if tenant in self.counters:
            self.counters[tenant] += (used - estimated) / self.weights.get(tenant, 1.0)

    def forget_idle(self, now_s: float, busy: Iterable[str]) -> None:
        """Drop counters that nobody used for an hour, except those of `busy` tenants."""
        kept = set(busy)
        for tenant, seen_s in list(self._seen_s.items()):
            if now_s - seen_s > EXPIRE_S and tenant not in kept:
                del self._seen_s[tenant]
                self.counters.pop(tenant, None)


@dataclass(slots=True)
class Dlpm:
    """Deficit with locality: among tenants that are owed work, the head that costs least goes.

    When nobody queued is owed anything, all queued get `quantum * weight`.
    """

    weights: Mapping[str, float] = field(default_factory=dict)
    quantum: float = QUANTUM
    deficits: dict[str, float] = field(default_factory=dict)

    def choose(
        self, lines: Lines, now_s: float, cost: Callable[[Queued], float]
    ) -> tuple[Pick, int] | None:
        """The next request and how many refills it takes; `cost` is its uncached work now."""
        tenants = list(lines.tenants)
        if not tenants:
            return None
        refills = 0
        if all(self.deficits.get(name, 0.0) <= 0 for name in tenants):
            refills = min(self._refills_until_owed(name) for name in tenants)
        owed = [
            name
            for name in tenants
            if self.deficits.get(name, 0.0) + refills * self._share(name) > 0
        ]
        heads = [(lines.head(name, now_s), name) for name in owed]
        request, tenant = min(heads, key=lambda head: (cost(head[0]), head[1]))
        return Pick(tenant, request), refills

    def sent(self, tenant: str, work: float, refills: int, lines: Lines) -> None:
        """Refill everybody queued as `choose` said, then charge; call before it leaves `lines`."""
        if refills:
            for name in lines.tenants:
                self.deficits[name] = self.deficits.get(name, 0.0) + refills * self._share(name)
        self.deficits[tenant] = self.deficits.get(tenant, 0.0) - work

    def settled(self, tenant: str, estimated: float, used: float) -> None:
        """Correct the charge to what was used; never above one round's share."""
        left = self.deficits.get(tenant, 0.0) + estimated - used
        self.deficits[tenant] = min(left, self._share(tenant))

    def _share(self, tenant: str) -> float:
        return self.quantum * self.weights.get(tenant, 1.0)

    def _refills_until_owed(self, tenant: str) -> int:
        return int(-self.deficits.get(tenant, 0.0) // self._share(tenant)) + 1
