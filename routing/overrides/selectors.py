"""Overrides for gateways, pages and REST, and which gateway obeys the present set."""

import logging
from dataclasses import dataclass
from datetime import datetime

from django.db.models import Q, QuerySet
from django.utils import timezone
from redis.exceptions import RedisError

from console.errors import NotFound
from console.web.keyset import DEFAULT_LIMIT, Page, cut
from console.web.store import store
from routing.contracts.enums import WorkClass
from routing.contracts.override import MAX_IN_FORCE, OverrideKind
from routing.contracts.override import Override as OnWire
from routing.models import Override
from routing.overrides.rules import Wanted, words_of
from routing.store.state import read_gateway_statuses, read_overrides_version

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class OverrideView:
    """An override as pages and REST show it. `state` is `active`, `lifted` or `ended`."""

    id: int
    kind: str
    words: str
    tenant: str
    work_class: str
    model: str
    amount: int | None
    admitted_ratio: float | None
    reason: str
    source: str
    run_id: int | None
    author: str
    created_at: datetime
    ends_at: datetime
    lifted_at: datetime | None
    lifted_by: str
    state: str


@dataclass(frozen=True, slots=True)
class Obedience:
    """How many of the living gateways obey the present set; None: the store is away."""

    obeying: int | None
    gateways: int | None


def override(override_id: int) -> OverrideView:
    """One override. Raises `NotFound`."""
    row = Override.objects.select_related("author").filter(pk=override_id).first()
    if row is None:
        raise NotFound("No such override.")
    return view_of(row, timezone.now())


def overrides(
    *, only_active: bool = False, before_id: int | None = None, limit: int = DEFAULT_LIMIT
) -> Page[OverrideView]:
    """Newest first."""
    now = timezone.now()
    rows = in_force(now) if only_active else Override.objects.all()
    if before_id is not None:
        rows = rows.filter(pk__lt=before_id)
    found = list(rows.select_related("author").order_by("-id")[: limit + 1])
    return cut([view_of(row, now) for row in found], limit, lambda one: one.id)


def in_force(now: datetime) -> QuerySet[Override, Override]:
    """Rows that gateways are to obey."""
    return Override.objects.filter(lifted_at=None, ends_at__gt=now)


def for_gateways(now: datetime) -> tuple[OnWire, ...]:
    """The present set as gateways take it, at most `MAX_IN_FORCE`."""
    rows = in_force(now).order_by("id")[:MAX_IN_FORCE]
    return tuple(
        OnWire(
            id=row.pk,
            kind=OverrideKind(row.kind),
            ends_at_ms=int(row.ends_at.timestamp() * 1000),
            reason=row.reason,
            tenant_id=str(row.tenant_id) if row.tenant_id is not None else "",
            work_class=WorkClass(row.work_class) if row.work_class else None,
            model=row.model,
            amount=row.amount,
            admitted_ratio=row.admitted_ratio,
        )
        for row in rows
    )


def obedience() -> Obedience:
    """Who has acknowledged the set that is on offer. Two reads of the store."""
    try:
        version = read_overrides_version(store()) or ""
        gateways = read_gateway_statuses(store(), int(timezone.now().timestamp() * 1000))
    except RedisError as error:
        logger.info("acknowledgements not read, the store is away: %s", error)
        return Obedience(None, None)
    return Obedience(sum(one.overrides == version for one in gateways), len(gateways))


def wanted_of(row: Override) -> Wanted:
    """The row as it was asked for."""
    return Wanted(
        kind=OverrideKind(row.kind),
        tenant=row.tenant_slug,
        work_class=WorkClass(row.work_class) if row.work_class else None,
        model=row.model,
        amount=row.amount,
        admitted_ratio=row.admitted_ratio,
    )


def view_of(row: Override, now: datetime) -> OverrideView:
    """The row as pages and REST show it."""
    ended = "active" if row.ends_at > now else "ended"
    state = ended if row.lifted_at is None else "lifted"
    return OverrideView(
        id=row.pk,
        kind=row.kind,
        words=words_of(wanted_of(row)),
        tenant=row.tenant_slug,
        work_class=row.work_class,
        model=row.model,
        amount=row.amount or None,
        admitted_ratio=row.admitted_ratio if row.kind == OverrideKind.SHED else None,
        reason=row.reason,
        source=row.source,
        run_id=row.run_id,
        author=row.author.username if row.author else "",
        created_at=row.created_at,
        ends_at=row.ends_at,
        lifted_at=row.lifted_at,
        lifted_by=row.lifted_by,
        state=state,
    )


def same_in_force(*, source: str, tenant_id: int | None, wanted: Wanted) -> Override | None:
    """An equal override of the same source that is still in force."""
    scope = Q(kind=wanted.kind.value, tenant_id=tenant_id, model=wanted.model)
    scope &= Q(work_class=wanted.work_class.value if wanted.work_class else "")
    scope &= Q(amount=wanted.amount, admitted_ratio=wanted.admitted_ratio or 0.0, source=source)
    return in_force(timezone.now()).filter(scope).first()
