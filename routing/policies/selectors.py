"""Policies, their versions, the newest snapshot, and which gateway runs which."""

from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import cast

from django.conf import settings
from django.db.models import F
from django.utils import timezone
from redis import Redis
from redis.exceptions import RedisError

from console.errors import NotFound
from console.web.store import store as watched_store
from routing.contracts.process import GatewayStatus, decode_gateway_status
from routing.models import Policy, PolicyDraft, PolicyVersion, SnapshotRow
from routing.policies.text import Comparison, compare
from routing.store import keys
from routing.store.pooled import sync_client

MAX_PAGE = 201  # the largest page, and one more row to know that another follows
GONE_AFTER_MS = 10_000  # a gateway reports every second
STORE_TIMEOUT_S = 1.0


@dataclass(frozen=True, slots=True)
class PolicyVersionView:
    """One immutable version. `is_live`: gateways are to run it."""

    policy: str
    number: int
    digest: str
    document: dict[str, object]
    note: str
    author: str
    created_at: datetime
    is_live: bool

    @property
    def label(self) -> str:
        """Name such as `main@43`."""
        return f"{self.policy}@{self.number}"


@dataclass(frozen=True, slots=True)
class DraftView:
    """What is being written on top of version `base` (None: of none). `tag` names this edition."""

    policy: str
    base: int | None
    text: str
    note: str
    edition: int
    tag: str
    author: str
    saved_at: datetime


@dataclass(frozen=True, slots=True)
class PolicyView:
    """A policy and the number and digest of its live version (`None` and empty: none yet)."""

    name: str
    live_number: int | None
    live_digest: str
    created_at: datetime


@dataclass(frozen=True, slots=True)
class SnapshotView:
    """A compiled snapshot, without its body."""

    number: int
    policy: str
    created_at: datetime


@dataclass(frozen=True, slots=True)
class GatewayAck:
    """What a gateway says it runs. `is_current`: the newest snapshot."""

    gateway_id: str
    snapshot_number: int
    policy: str
    state: str
    age_s: float
    is_current: bool


@dataclass(frozen=True, slots=True)
class Acks:
    """Acknowledgements of the newest snapshot; `is_known` is false while the store is away."""

    snapshot: SnapshotView | None
    gateways: tuple[GatewayAck, ...]
    is_known: bool

    def of(self, label: str) -> "Acks":
        """Only the gateways that run the version of that name."""
        running = tuple(one for one in self.gateways if one.policy == label)
        return Acks(self.snapshot, running, self.is_known)


def policies() -> list[PolicyView]:
    """Every policy, in order of name, at most `MAX_PAGE`."""
    return [
        _policy(row) for row in Policy.objects.select_related("live").order_by("name")[:MAX_PAGE]
    ]


def policy(name: str) -> PolicyView:
    """One policy. Raises `NotFound`."""
    row = Policy.objects.select_related("live").filter(name=name).first()
    if row is None:
        raise NotFound("No such policy.")
    return _policy(row)


def versions(
    name: str, *, before_number: int | None = None, limit: int = 50
) -> list[PolicyVersionView]:
    """Versions of a policy, newest first, at most `MAX_PAGE`."""
    rows = PolicyVersion.objects.select_related("policy", "author").filter(policy__name=name)
    if before_number is not None:
        rows = rows.filter(number__lt=before_number)
    return [version_view(row) for row in rows.order_by("-number")[: min(limit, MAX_PAGE)]]


def version(name: str, number: int) -> PolicyVersionView:
    """One version. Raises `NotFound`."""
    rows = PolicyVersion.objects.select_related("policy", "author")
    row = rows.filter(policy__name=name, number=number).first()
    if row is None:
        raise NotFound("No such version.")
    return version_view(row)


def comparison(name: str, before: int, after: int) -> Comparison:
    """From one version to another. Raises `NotFound`."""
    return compare(version(name, before).document, version(name, after).document)


def live(name: str) -> PolicyVersionView | None:
    """The version that gateways are to run, if one was published."""
    rows = PolicyVersion.objects.select_related("policy", "author").filter(policy__name=name)
    row = rows.filter(policy__live_id=F("pk")).first()
    return version_view(row) if row else None


def number_of(name: str, digest: str) -> int | None:
    """Number of the newest version with that digest, if there was one."""
    rows = PolicyVersion.objects.filter(policy__name=name, digest=digest)
    return rows.order_by("-number").values_list("number", flat=True).first()


def draft(name: str) -> DraftView | None:
    """The policy's draft, if one is being written."""
    row = PolicyDraft.objects.select_related("author").filter(policy=name).first()
    return draft_view(row) if row else None


def draft_view(row: PolicyDraft, author: str = "") -> DraftView:
    """A row as a frozen value; its author is loaded, or named."""
    return DraftView(
        policy=row.policy,
        base=row.base,
        text=row.text,
        note=row.note,
        edition=row.edition,
        tag=f"{row.pk}-{row.edition}",
        author=author or (row.author.username if row.author else ""),
        saved_at=row.saved_at,
    )


def newest_snapshot() -> SnapshotView | None:
    """The snapshot that gateways are to run."""
    row = SnapshotRow.objects.select_related("version__policy").order_by("-number").first()
    if row is None:
        return None
    label = f"{row.version.policy.name}@{row.version.number}"
    return SnapshotView(number=row.number, policy=label, created_at=row.created_at)


def acks() -> Acks:
    """Who runs the newest snapshot, by the gateways' own word of the last seconds."""
    newest = newest_snapshot()
    try:
        raw = cast("dict[bytes, bytes]", watched_store().hgetall(keys.GATEWAYS))
    except RedisError:
        return Acks(newest, (), is_known=False)
    now_ms = int(timezone.now().timestamp() * 1000)
    statuses = [decode_gateway_status(value) for value in raw.values()]
    heard = [status for status in statuses if now_ms - status.at_ms <= GONE_AFTER_MS]
    heard.sort(key=lambda status: status.gateway_id)
    number = newest.number if newest else 0
    return Acks(newest, tuple(_ack(status, number, now_ms) for status in heard), is_known=True)


@lru_cache(maxsize=1)
def store() -> Redis:
    """This process's connection to the store, with a short timeout."""
    return sync_client(settings.REDIS_URL, timeout_s=STORE_TIMEOUT_S)


def version_view(row: PolicyVersion) -> PolicyVersionView:
    """A row, with its policy and author loaded, as a frozen value."""
    return PolicyVersionView(
        policy=row.policy.name,
        number=row.number,
        digest=row.digest,
        document=row.document,
        note=row.note,
        author=row.author.username if row.author else "",
        created_at=row.created_at,
        is_live=row.policy.live_id == row.pk,
    )


def _ack(status: GatewayStatus, newest: int, now_ms: int) -> GatewayAck:
    return GatewayAck(
        gateway_id=status.gateway_id,
        snapshot_number=status.snapshot_number,
        policy=status.policy,
        state=status.state,
        age_s=max(now_ms - status.at_ms, 0) / 1000,
        is_current=status.snapshot_number == newest,
    )


def _policy(row: Policy) -> PolicyView:
    return PolicyView(
        name=row.name,
        live_number=row.live.number if row.live else None,
        live_digest=row.live.digest if row.live else "",
        created_at=row.created_at,
    )
