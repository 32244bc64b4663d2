"""The trail, filtered and paged by key, and the proof that it was not tampered with."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

from django.db.models import Q

from console.audit.rules import GENESIS, Event, is_link_intact
from console.models import AuditEvent

MAX_PAGE = 201  # the largest page, and one more row to know that another follows
_VERIFY_BATCH = 1000  # rows held in memory at once while the chain is checked


@dataclass(frozen=True, slots=True)
class AuditLine:
    """One event as pages and REST show it."""

    id: int
    at: datetime
    actor: str
    act: str
    object_type: str
    object_id: str
    tenant_id: int | None
    reason: str
    before: object
    after: object
    request_id: str
    hash: str


@dataclass(frozen=True, slots=True)
class AuditFilter:
    """What to show; `None` does not filter. An empty set of tenants shows nothing."""

    tenant_ids: frozenset[int] | None = None
    actor_id: int | None = None
    object_type: str | None = None
    object_id: str | None = None


@dataclass(frozen=True, slots=True)
class ChainReport:
    """Result of a check: events read, and the id of the first one that does not fit."""

    checked_count: int
    broken_at_id: int | None
    last_hash: str

    @property
    def is_intact(self) -> bool:
        """Whether every event fits."""
        return self.broken_at_id is None


def trail(
    filters: AuditFilter, *, before_id: int | None = None, limit: int = 50
) -> list[AuditLine]:
    """Events newest first, older than `before_id`, at most `min(limit, MAX_PAGE)`."""
    rows = AuditEvent.objects.order_by("-id")
    if filters.tenant_ids is not None:
        rows = rows.filter(tenant_id__in=filters.tenant_ids)
    if filters.actor_id is not None:
        rows = rows.filter(actor_id=filters.actor_id)
    if filters.object_type is not None:
        rows = rows.filter(object_type=filters.object_type)
    if filters.object_id is not None:
        rows = rows.filter(object_id=filters.object_id)
    if before_id is not None:
        rows = rows.filter(id__lt=before_id)
    return [_line(row) for row in rows[: min(limit, MAX_PAGE)]]


def acts_between(
    prefixes: tuple[str, ...], *, since: datetime, until: datetime, limit: int
) -> list[AuditLine]:
    """Events of `[since, until)` whose act begins with one of the prefixes, oldest first."""
    named = Q(pk__in=[])
    for prefix in prefixes:
        named |= Q(act__startswith=prefix)
    rows = AuditEvent.objects.filter(named, at__gte=since, at__lt=until).order_by("id")
    return [_line(row) for row in rows[:limit]]


def begun_by_people(*, act: str, object_type: str, object_ids: Sequence[str]) -> set[str]:
    """Those of the objects whose first such act was a person's, not the machine's: one query."""
    acts = AuditEvent.objects.filter(object_type=object_type, act=act, object_id__in=object_ids)
    first = acts.order_by("object_id", "id").distinct("object_id")
    found = first.values_list("object_id", "actor_id")
    return {object_id for object_id, actor_id in found if actor_id is not None}


def verify_chain() -> ChainReport:
    """Read the whole chain from its start and stop at the first event that does not fit.

    A cut-off tail cannot be seen from the rows alone: compare `last_hash` with one noted elsewhere.
    """
    expected, checked = GENESIS, 0
    for row in _all_events():
        if not is_link_intact(expected, row.prev_hash, row.hash, _event(row)):
            return ChainReport(checked, row.pk, expected)
        expected, checked = row.hash, checked + 1
    return ChainReport(checked, None, expected)


def _all_events() -> Iterator[AuditEvent]:
    last_id = 0
    while batch := list(AuditEvent.objects.filter(id__gt=last_id).order_by("id")[:_VERIFY_BATCH]):
        yield from batch
        last_id = batch[-1].pk


def _event(row: AuditEvent) -> Event:
    return Event(
        at=row.at,
        actor_id=row.actor_id,
        actor_label=row.actor_label,
        act=row.act,
        object_type=row.object_type,
        object_id=row.object_id,
        tenant_id=row.tenant_id,
        reason=row.reason,
        before=row.before,
        after=row.after,
        request_id=row.request_id,
    )


def _line(row: AuditEvent) -> AuditLine:
    return AuditLine(
        id=row.pk,
        at=row.at,
        actor=row.actor_label,
        act=row.act,
        object_type=row.object_type,
        object_id=row.object_id,
        tenant_id=row.tenant_id,
        reason=row.reason,
        before=row.before,
        after=row.after,
        request_id=row.request_id,
        hash=row.hash,
    )
