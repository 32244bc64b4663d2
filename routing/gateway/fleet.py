"""The endpoints that this gateway may use: their addresses, own load, breakers, last reports."""

import logging
from collections.abc import Sequence

from routing.contracts.capabilities import ApiStyle, Capability, capabilities_of
from routing.contracts.endpoint_state import EndpointState, PoolState
from routing.contracts.enums import ReplicaHealth
from routing.contracts.reach import Reach, reach_of
from routing.contracts.sealing import SealError, open_sealed, provider_purpose
from routing.contracts.snapshot import EndpointEntry, ModelEntry, PoolEntry, Snapshot
from routing.decision.breaker import Breaker, Outcome
from routing.decision.filters import Candidate, Report
from routing.decision.outlier import Pace, weigh_pool
from routing.decision.regions import failing_regions
from routing.decision.residency import Residency, entries_for
from routing.decision.select import EJECT_MAX_RATIO, Group
from routing.gateway.dialects.needs import Needs
from routing.gateway.upstream import ConnectionPool

log = logging.getLogger(__name__)

HTTPS_PORT = 443
ANTHROPIC_VERSION = "2023-06-01"  # of the Messages API, the only one there is
MAX_BLOCKS = 130_000  # prefix blocks remembered of the whole fleet, about 130 B each
MAX_ASKED = 1_024  # (model, needs) whose targets are remembered while a snapshot lasts
UNKNOWN_KV_TOKENS = 100_000  # of a replica whose KV cache nobody knows yet

LONG_AGO_S = -1e9  # one of which nobody knows when it began is no young one


class Endpoint:
    """One replica as this gateway uses it; keeps its state over snapshots.

    `residency` are the prefixes that this gateway has sent there.
    """

    __slots__ = (
        "_auth",
        "_lines",
        "_prefix",
        "_recovered_at_s",
        "candidate",
        "capabilities",
        "connections",
        "entry",
        "is_listed",
        "pace",
        "pool",
        "residency",
        "tokens_per_event",
    )

    def __init__(self, entry: EndpointEntry, pool: PoolEntry, reach: Reach | None = None) -> None:
        self.entry = entry
        self.pool = pool
        has_tls = pool.has_tls or pool.is_hosted
        self.connections = ConnectionPool(
            entry.host, entry.port, reach, has_tls=has_tls, is_public=pool.is_hosted
        )
        self.candidate = Candidate(
            entry.replica_id, pool.id, Breaker(entry.replica_id), pool.kv_capacity_tokens
        )
        host = f"[{entry.host}]" if ":" in entry.host else entry.host
        port = "" if has_tls and entry.port == HTTPS_PORT else f":{entry.port}"
        self._lines = (
            f" HTTP/1.1\r\nhost: {host}{port}\r\ncontent-type: application/json\r\n"
            "accept-encoding: identity\r\n"
        ).encode()
        self._prefix = b""
        self._auth = b""
        self.capabilities: frozenset[str] = frozenset()
        self.is_listed = True
        self._recovered_at_s = LONG_AGO_S
        self.residency = Residency(0)
        self.pace = Pace()
        self.tokens_per_event = 1.0  # of its last finished stream

    def head(
        self, method: bytes, path: bytes, request_id: bytes, length: int, more: bytes = b""
    ) -> bytes:
        """Head of a request to it, with its own credential; `more` are finished lines."""
        return b"%b %b%b%bx-request-id: %b\r\n%b%bcontent-length: %d\r\n\r\n" % (
            method, self._prefix, path, self._lines, request_id, self._auth, more, length
        )  # fmt: skip

    def take_key(self, key: str) -> None:
        """The provider's API key, empty for none."""
        self._auth = _auth_lines(self.pool.style, key)

    def refresh(self, entry: EndpointEntry, pool: PoolEntry, ready_at_s: float) -> None:
        """Take over what a new snapshot says of the same address."""
        self._prefix = pool.path_prefix.encode()
        self.capabilities = capabilities_of(pool.style, pool.capabilities)
        if entry.ready_at_ms != self.entry.ready_at_ms:
            self.residency.forget()  # it started anew: its cache is empty
        self.entry = entry
        self.pool = pool
        self.candidate.is_draining = entry.is_draining
        self.candidate.kv_capacity_tokens = pool.kv_capacity_tokens
        self.candidate.ready_at_s = max(ready_at_s, self._recovered_at_s)

    def recovered(self, now_s: float) -> None:
        """It answers again after it was lost or failing: its slow start begins."""
        self._recovered_at_s = self.candidate.ready_at_s = now_s

    def began(self, kv_tokens: int) -> None:
        """A request is sent here."""
        self.candidate.in_flight += 1
        self.candidate.held_tokens += kv_tokens

    def ended(self, kv_tokens: int) -> None:
        """A request that was sent here is over, whatever became of it."""
        self.candidate.in_flight -= 1
        self.candidate.held_tokens -= kv_tokens


class Fleet:
    """All endpoints of the snapshot in force, and the groups that each model may use."""

    def __init__(self, secret: bytes = b"", reach: Reach | None = None) -> None:
        """`secret` opens providers' keys; `reach` is how those are reached."""
        self._secret = secret
        self._reach = reach or reach_of("", frozenset())
        self._targets: dict[str, list[tuple[frozenset[str], Group]]] = {}
        self.endpoints: dict[str, Endpoint] = {}
        self._able: dict[tuple[str, Needs], list[Group]] = {}  # of what was asked for
        self._report_at_ms: dict[str, int] = {}
        self._adapters: dict[tuple[str, str], str] = {}
        self.pools: tuple[str, ...] = ()
        self.adapter_pools: frozenset[str] = frozenset()

    def take_snapshot(self, snapshot: Snapshot, now_s: float, wall_ms: int) -> None:
        """Follow a snapshot: new endpoints appear, gone ones finish what they have."""
        old, self.endpoints = self.endpoints, {}
        by_pool: dict[str, list[Candidate]] = {}
        for pool in snapshot.pools.values():
            members = by_pool.setdefault(pool.id, [])
            for entry in pool.endpoints:
                endpoint = old.pop(entry.replica_id, None)
                if endpoint is None or _moved(endpoint, entry, pool):
                    if endpoint is not None:
                        _retire(endpoint)
                    endpoint = Endpoint(entry, pool, self._reach)
                age_s = (wall_ms - entry.ready_at_ms) / 1000 if entry.ready_at_ms else 0.0
                ready_at_s = now_s - age_s if entry.ready_at_ms else LONG_AGO_S
                endpoint.refresh(entry, pool, ready_at_s)
                endpoint.take_key(self._key_of(pool))
                self.endpoints[entry.replica_id] = endpoint
                members.append(endpoint.candidate)
        for endpoint in old.values():
            _retire(endpoint)
        for endpoint in self.endpoints.values():
            tokens = endpoint.candidate.kv_capacity_tokens or UNKNOWN_KV_TOKENS
            most = MAX_BLOCKS // len(self.endpoints)
            endpoint.residency.resize(min(entries_for(tokens), most))
        self.pools = tuple(snapshot.pools)
        self._adapters = {
            (model.name, target.pool): target.adapter
            for model in snapshot.models.values()
            for target in model.targets
            if target.adapter
        }
        self.adapter_pools = frozenset(pool for _, pool in self._adapters)
        able = {
            pool.id: capabilities_of(pool.style, pool.capabilities)
            for pool in snapshot.pools.values()
        }
        self._targets = {
            name: [(able[pool], group) for pool, group in _groups_of(model, by_pool)]
            for name, model in snapshot.models.items()
        }
        self._able.clear()

    def _key_of(self, pool: PoolEntry) -> str:
        if not pool.sealed_key:
            return ""
        try:
            return open_sealed(self._secret, provider_purpose(pool.id), pool.sealed_key)
        except SealError:
            log.error("the API key of pool %s cannot be opened: set it again", pool.id)  # noqa: TRY400 - no traceback near a secret
            return ""

    def groups(self, model: str, needs: Needs = ()) -> Sequence[Group]:
        """Targets of a model in the policy's order, those that can do what is needed."""
        found = self._able.get((model, needs))
        if found is None:
            found = [
                group
                for able, group in self._targets.get(model, ())
                if all(need in able for need, _ in needs)
            ]
            if len(self._able) >= MAX_ASKED:
                self._able.clear()
            self._able[model, needs] = found
        return found

    def lacking(self, model: str, needs: Needs) -> tuple[Capability, str] | None:
        """The first need that leaves no target, with the member that asks; None: some can all."""
        if self.groups(model, needs):
            return None
        left = [able for able, _ in self._targets.get(model, ())]
        if not left:
            return None
        for need, param in needs:
            left = [able for able in left if need in able]
            if not left:
                return need, param
        return None

    def judge(
        self, model: str, endpoint: Endpoint, outcome: Outcome, now_s: float, *, was_answered: bool
    ) -> None:
        """Tell breakers what a request found.

        What an adapter's own answer says counts for the adapter, all else for the replica too.
        """
        candidate = endpoint.candidate
        name = self._adapters.get((model, endpoint.pool.id))
        if name is not None:
            breakers = candidate.adapter_breakers
            breaker = breakers.setdefault(name, Breaker(f"{candidate.id}/{name}"))
            breaker.observe(outcome, now_s)
        if name is None or outcome is not Outcome.FAILURE or not was_answered:
            candidate.breaker.observe(outcome, now_s)

    def compare(self, now_s: float) -> None:
        """Judge endpoints by their neighbours: failing regions, outliers; called each second."""
        pools: dict[str, list[tuple[Candidate, Pace]]] = {}
        all_ = list(self.endpoints.values())
        failing = failing_regions(
            (one.pool.region, not one.candidate.breaker.allows()) for one in all_
        )
        for one in all_:
            one.candidate.in_failing_region = one.pool.region in failing
            pools.setdefault(one.pool.id, []).append((one.candidate, one.pace))
        for members in pools.values():
            weigh_pool(members, now_s, int(EJECT_MAX_RATIO * len(members)))

    def own(self, groups: Sequence[Group]) -> list[Group]:
        """Those of pools of our own engines."""
        found = []
        for group in groups:
            endpoint = self.endpoints.get(group.candidates[0].id) if group.candidates else None
            if endpoint is not None and not endpoint.pool.is_hosted:
                found.append(group)
        return found

    def is_only(self, model: str, pool: str) -> bool:
        """Whether a model has no other target than this pool."""
        groups = self.groups(model)
        return all(c.pool == pool for group in groups for c in group.candidates[:1])

    def served_name(self, model: str, pool: PoolEntry) -> str:
        """What a pool's engines call a model that the pool is a target of."""
        return self._adapters.get((model, pool.id), pool.served_model)

    def unloaded(self, model: str, endpoint: Endpoint) -> None:
        """A replica answered that it has no such model: if an adapter, it is asked again later."""
        name = self._adapters.get((model, endpoint.pool.id))
        candidate = endpoint.candidate
        if name and candidate.adapters:
            candidate.adapters -= {name}

    def is_loaded(self, model: str) -> bool:
        """False for an adapter that no replica has; any other model is."""
        groups = self.groups(model)
        return not groups or any(
            not group.adapter or any(group.adapter in (c.adapters or ()) for c in group.candidates)
            for group in groups
        )

    def take_report(self, state: PoolState, now_s: float, wall_ms: int) -> None:
        """Take over what the collector says of a pool's endpoints.

        Ages are by our own monotonic clock from the moment a newer report was seen; only the first
        report of an endpoint is dated by the collector's wall clock.
        """
        for reported in state.endpoints:
            endpoint = self.endpoints.get(reported.replica_id)
            if endpoint is None:
                continue
            seen_ms = self._report_at_ms.get(reported.replica_id)
            if seen_ms == reported.at_ms:
                continue
            self._report_at_ms[reported.replica_id] = reported.at_ms
            age_s = 0.0 if seen_ms is not None else max(0.0, (wall_ms - reported.at_ms) / 1000)
            before = endpoint.candidate.report
            _note(endpoint.candidate, reported, now_s - age_s)
            was_lost = before is not None and before.health is ReplicaHealth.LOST
            if was_lost and reported.health is ReplicaHealth.OK:
                endpoint.recovered(now_s)

    def close_idle(self, now_s: float) -> None:
        """Close connections that have been idle for too long."""
        for endpoint in self.endpoints.values():
            endpoint.connections.close_idle(now_s)

    def close(self) -> None:
        """Close every kept connection."""
        for endpoint in self.endpoints.values():
            endpoint.connections.close()


def _moved(endpoint: Endpoint, new: EndpointEntry, pool: PoolEntry) -> bool:
    old, before = endpoint.entry, endpoint.pool
    return (old.host, old.port, before.has_tls) != (new.host, new.port, pool.has_tls)


def _retire(endpoint: Endpoint) -> None:
    endpoint.is_listed = False
    endpoint.candidate.is_draining = True
    endpoint.connections.close()


def _auth_lines(style: ApiStyle, key: str) -> bytes:
    if style is ApiStyle.ANTHROPIC:
        version = f"anthropic-version: {ANTHROPIC_VERSION}\r\n"
        return (f"x-api-key: {key}\r\n{version}" if key else version).encode()
    return f"authorization: Bearer {key}\r\n".encode() if key else b""


def _groups_of(model: ModelEntry, by_pool: dict[str, list[Candidate]]) -> list[tuple[str, Group]]:
    targets = sorted(model.targets, key=lambda target: target.order)
    return [
        (t.pool, Group(t.order, t.weight, by_pool[t.pool], t.adapter))
        for t in targets
        if t.pool in by_pool
    ]


def _note(candidate: Candidate, reported: EndpointState, at_s: float) -> None:
    if reported.kv_capacity_tokens:
        candidate.kv_capacity_tokens = reported.kv_capacity_tokens
    candidate.report = Report(
        at_s,
        reported.health,
        reported.running,
        reported.waiting,
        reported.kv_usage_ratio,
        candidate.in_flight,
    )
