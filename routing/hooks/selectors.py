"""Hooks for gateways, pages and REST; where policies name them, and how they do at the gateways."""

import logging
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

from django.db.models import F
from django.utils import timezone
from redis.exceptions import RedisError

from console.errors import NotFound
from console.web.store import store
from routing.contracts.hooks import MAX_HOOKS, HookEntry, HookKind, HookReport, HookVerdict
from routing.hooks.rules import Address, address_of
from routing.models import Hook, PolicyDraft, PolicyVersion
from routing.store.state import read_gateway_statuses
from telemetry.stats.sketch import add, quantile

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class HookUseView:
    """A line of a live policy. `classes` is empty for all."""

    policy: str
    at: str
    deadline_ms: int
    on_failure: str
    classes: tuple[str, ...]

    @property
    def words(self) -> str:
        """The line as a person reads it."""
        whose = f" for {', '.join(self.classes)}" if self.classes else ""
        return f"{self.policy} {self.at}{whose}, {self.deadline_ms:,} ms, else {self.on_failure}"


@dataclass(frozen=True, slots=True)
class HookState:
    """How a hook does at all living gateways together, each counting since it started.

    `p95_s` is of the answers of the last five to ten minutes, None without any. `state` is `unused`
    (no gateway has it), `ok`, `failing` (its breaker is open somewhere) or `idle` (not asked yet).
    """

    state: str
    gateways: int = 0
    passed: int = 0
    refused: int = 0
    failed: int = 0
    skipped: int = 0
    p95_s: float | None = None
    error: str = ""
    error_at: datetime | None = None

    @property
    def calls(self) -> int:
        """How often it was asked."""
        return self.passed + self.refused + self.failed


@dataclass(frozen=True, slots=True)
class HookView:
    """A hook without its secret. `is_known` of the state is None while the store is away."""

    name: str
    kind: str
    url: str
    entry_point: str
    secret_hint: str
    secret_set_at: datetime | None
    purpose: str
    created_at: datetime
    uses: tuple[HookUseView, ...]
    health: HookState | None

    @property
    def found_at(self) -> str:
        """Its address, or its entry point."""
        return self.url or self.entry_point


def hooks(*, after: str = "", limit: int = MAX_HOOKS) -> list[HookView]:
    """Hooks by name, at most `MAX_HOOKS`. Two queries and one read of the store."""
    used, health = uses(), _health()
    rows = Hook.objects.filter(name__gt=after).order_by("name")[: min(limit, MAX_HOOKS)]
    return [_view(row, used.get(row.name, ()), health) for row in rows]


def hook(name: str) -> HookView:
    """One hook. Raises `NotFound`."""
    row = Hook.objects.filter(name=name).first()
    if row is None:
        raise NotFound("No such hook.")
    return _view(row, uses().get(name, ()), _health())


def uses() -> dict[str, tuple[HookUseView, ...]]:
    """Lines of live policies that name a hook, by its name."""
    rows = PolicyVersion.objects.filter(policy__live_id=F("pk")).select_related("policy")
    found: dict[str, tuple[HookUseView, ...]] = {}
    for row in rows.order_by("policy__name"):
        label = f"{row.policy.name}@{row.number}"
        for name, use in _uses_in(label, row.document):
            found[name] = (*found.get(name, ()), use)
    return found


def drafts_naming(name: str) -> list[str]:
    """Policies whose draft names a hook: as text, since a draft need not be a document yet."""
    rows = PolicyDraft.objects.filter(text__contains=f'"{name}"').order_by("policy")
    return list(rows.values_list("policy", flat=True)[:MAX_HOOKS])


def hooks_for_snapshot() -> dict[str, HookEntry]:
    """Every hook as gateways take it."""
    return {row.name: _entry(row) for row in Hook.objects.order_by("name")[:MAX_HOOKS]}


def _entry(row: Hook) -> HookEntry:
    if row.kind == HookKind.PYTHON:
        return HookEntry(row.name, HookKind.PYTHON, entry_point=row.entry_point)
    address = address_of(row.url)
    assert isinstance(address, Address)  # noqa: S101 - checked when it was written
    return HookEntry(
        row.name,
        HookKind.WEBHOOK,
        address.host,
        address.port,
        address.path,
        address.has_tls,
        bytes(row.sealed_secret),
    )


def _uses_in(label: str, document: dict[str, object]) -> Iterator[tuple[str, HookUseView]]:
    rules = document.get("hooks", [])
    for rule in rules if isinstance(rules, list) else ():
        yield (
            rule["hook"],
            HookUseView(
                policy=label,
                at=rule["at"],
                deadline_ms=rule["deadline_ms"],
                on_failure=rule["on_failure"],
                classes=tuple(rule.get("classes") or ()),
            ),
        )


def _health() -> dict[str, list[HookReport]] | None:
    """What living gateways say, by hook; None while the store is away."""
    try:
        statuses = read_gateway_statuses(store(), int(timezone.now().timestamp() * 1000))
    except RedisError as error:
        logger.info("hooks of gateways not read, the store is away: %s", error)
        return None
    found: dict[str, list[HookReport]] = {}
    for status in statuses:
        for name, report in status.hooks.items():
            found.setdefault(name, []).append(report)
    return found


def _view(
    row: Hook, used: tuple[HookUseView, ...], health: dict[str, list[HookReport]] | None
) -> HookView:
    return HookView(
        name=row.name,
        kind=row.kind,
        url=row.url,
        entry_point=row.entry_point,
        secret_hint=row.secret_hint,
        secret_set_at=row.secret_set_at,
        purpose=row.purpose,
        created_at=row.created_at,
        uses=used,
        health=None if health is None else state_of(health.get(row.name, [])),
    )


def state_of(reports: list[HookReport]) -> HookState:
    """What several gateways say of one hook, added up."""
    counts: Counter[str] = Counter()
    bins: dict[int, int] = {}
    for report in reports:
        counts.update(report.verdicts)
        add(bins, report.seconds)
    last = max(reports, key=lambda one: one.error_at_ms, default=HookReport())
    return HookState(
        state=_word(reports, counts),
        gateways=len(reports),
        passed=counts[HookVerdict.PASS],
        refused=counts[HookVerdict.REFUSE],
        failed=counts[HookVerdict.FAILED],
        skipped=counts[HookVerdict.SKIPPED],
        p95_s=quantile(bins, 0.95) if bins else None,
        error=last.error,
        error_at=(
            datetime.fromtimestamp(last.error_at_ms / 1000, UTC) if last.error_at_ms else None
        ),
    )


def _word(reports: list[HookReport], counts: Counter[str]) -> str:
    if not reports:
        return "unused"
    if any(report.breaker != "closed" for report in reports):
        return "failing"
    return "ok" if counts.total() else "idle"
