"""Keys for lists, and the digests that gateways know."""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.conf import settings
from django.db.models import Max, Q, Sum

from console.errors import NotFound
from routing.contracts.digest import keyed_digest
from routing.contracts.enums import WorkClass
from routing.contracts.snapshot import KeyEntry
from tenants.keys.rules import looks_like_key
from tenants.models import ApiKey, TenantState, UsageRollup

DAY = timedelta(hours=24)
MAX_PAGE = 201  # the largest page, and one more row to know that another follows


@dataclass(frozen=True, slots=True)
class KeyView:
    """A key as lists show it: never its digest."""

    id: int
    tenant_id: int
    project_id: int
    project: str
    name: str
    prefix: str
    allowed_models: tuple[str, ...]
    work_class: str
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None
    previous_until: datetime | None


def keys(tenant_id: int, *, before_id: int | None = None, limit: int = 50) -> list[KeyView]:
    """A tenant's keys newest first, older than `before_id`, at most `MAX_PAGE`."""
    rows = ApiKey.objects.select_related("project").filter(tenant_id=tenant_id).order_by("-id")
    if before_id is not None:
        rows = rows.filter(id__lt=before_id)
    return [_view(row) for row in rows[: min(limit, MAX_PAGE)]]


def key(tenant_id: int, key_id: int) -> KeyView:
    """One key of a tenant. Raises `NotFound`."""
    rows = ApiKey.objects.select_related("project").filter(tenant_id=tenant_id, pk=key_id)
    row = rows.first()
    if row is None:
        raise NotFound("No such key.")
    return _view(row)


@dataclass(frozen=True, slots=True)
class FoundKey:
    """A key that a search found, with its tenant's slug."""

    id: int
    tenant: str
    name: str
    prefix: str
    is_revoked: bool


def keys_beginning(tenant_ids: frozenset[int] | None, prefix: str, *, limit: int) -> list[FoundKey]:
    """Keys whose public prefix begins so, in order of prefix, of the tenants in `tenant_ids`."""
    rows = ApiKey.objects.select_related("tenant").filter(prefix__startswith=prefix)
    if tenant_ids is not None:
        rows = rows.filter(tenant_id__in=tenant_ids)
    return [
        FoundKey(row.pk, row.tenant.slug, row.name, row.prefix, row.revoked_at is not None)
        for row in rows.order_by("prefix")[: min(limit, MAX_PAGE)]
    ]


@dataclass(frozen=True, slots=True)
class KeyTraffic:
    """What a key did in the last 24 hours; `last_at` begins the step with its last call."""

    requests: int
    last_at: datetime


def traffic_of(
    tenant_id: int, key_ids: Collection[int], now: datetime, *, grain: str = "h"
) -> dict[int, KeyTraffic]:
    """Traffic of the keys that were used in the last 24 hours, from the rollups: one query.

    By hours for a page of keys; by minutes (`m`) for one key, whose last call then is exact.
    """
    rows = (
        UsageRollup.objects.filter(
            tenant_id=tenant_id, key_id__in=key_ids, grain=grain, start_at__gte=now - DAY
        )
        .order_by()
        .values_list("key_id")
        .annotate(Sum("requests"), Max("start_at"))
    )
    return {key_id: KeyTraffic(requests, last_at) for key_id, requests, last_at in rows}


def live_key(secret: str, now: datetime) -> KeyView | None:
    """The key that a secret belongs to, if gateways would take it now: also while it rotates."""
    if not looks_like_key(secret):
        return None
    digest = keyed_digest(settings.KEY_PEPPER.encode(), secret.encode())
    is_this = Q(digest=digest) | Q(previous_digest=digest, previous_until__gt=now)
    row = (
        ApiKey.objects.select_related("project")
        .filter(is_this, revoked_at=None, tenant__state=TenantState.ACTIVE)
        .filter(Q(expires_at=None) | Q(expires_at__gt=now))
        .first()
    )
    return None if row is None else _view(row)


def keys_for_snapshot(now: datetime) -> dict[str, KeyEntry]:
    """Digest -> key, of every key that may still be used; both digests while a rotation runs.

    An end that lies ahead travels with the entry, so gateways honour it to the second.
    """
    entries: dict[str, KeyEntry] = {}
    rows = ApiKey.objects.filter(revoked_at=None).filter(Q(expires_at=None) | Q(expires_at__gt=now))
    for row in rows.order_by("pk").iterator():
        entries[row.digest] = _entry(row, row.expires_at)
        if row.previous_digest and row.previous_until and row.previous_until > now:
            ends = [row.previous_until] + ([row.expires_at] if row.expires_at else [])
            entries[row.previous_digest] = _entry(row, min(ends))
    return entries


def _entry(row: ApiKey, expires_at: datetime | None) -> KeyEntry:
    return KeyEntry(
        id=str(row.pk),
        tenant_id=str(row.tenant_id),
        project_id=str(row.project_id),
        prefix=row.prefix,
        models=tuple(row.allowed_models),
        work_class=WorkClass(row.work_class) if row.work_class else None,
        expires_at_ms=int(expires_at.timestamp() * 1000) if expires_at else None,
    )


def _view(row: ApiKey) -> KeyView:
    return KeyView(
        id=row.pk,
        tenant_id=row.tenant_id,
        project_id=row.project_id,
        project=row.project.slug,
        name=row.name,
        prefix=row.prefix,
        allowed_models=tuple(row.allowed_models),
        work_class=row.work_class,
        created_at=row.created_at,
        expires_at=row.expires_at,
        revoked_at=row.revoked_at,
        previous_until=row.previous_until,
    )
