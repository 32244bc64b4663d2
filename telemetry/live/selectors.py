"""Who a session belongs to and what it may see now; the published state for the first response."""

import logging
from dataclasses import dataclass
from importlib import import_module
from types import SimpleNamespace
from typing import Any, TypeVar, cast

import msgspec
from django.conf import settings
from django.contrib.auth import get_user
from redis.exceptions import RedisError

from console.accounts.selectors import Caller, Permission, can, visible_tenant_ids
from console.web.store import store
from routing.contracts.live import (
    POOL,
    POOL_HISTORY,
    SLICES,
    SLICES_BY_MODEL,
    SLICES_BY_TENANT,
    SLICES_TOTAL,
    LivePool,
    LivePoolHistory,
    LiveSlices,
    decode_live_history,
    decode_live_pool,
    decode_live_slices,
)
from routing.store import keys
from telemetry.live.rules import Access
from tenants.directory.selectors import slugs_of

logger = logging.getLogger(__name__)

T = TypeVar("T")


def access_of_session(session_key: str | None) -> Access | None:
    """What the session's person may see now.

    None: signed out, suspended, expired, or no session. Nothing is cached.
    """
    if not session_key:
        return None
    session = import_module(settings.SESSION_ENGINE).SessionStore(session_key)
    return access_of(cast(Caller, get_user(cast(Any, SimpleNamespace(session=session)))))


def access_of(user: Caller) -> Access | None:
    """What a person may see; None when nobody is signed in or the account is suspended."""
    if user is None or user.pk is None or not user.is_active:
        return None
    tenant_ids = visible_tenant_ids(user)
    tenants = None
    if tenant_ids is not None:
        tenants = {str(number): slug for number, slug in slugs_of(tenant_ids).items()}
    return Access(
        user_id=user.pk,
        username=user.get_username(),
        sees_pools=can(user, Permission.VIEW_ALL),
        tenants=tenants,
    )


@dataclass(frozen=True, slots=True)
class Published:
    """What the collector published last; None: never, unreadable, or the store is away."""

    slices: LiveSlices | None
    tenants: LiveSlices | None
    total: LiveSlices | None
    pool: LivePool | None
    history: LivePoolHistory | None


def published(*, by_pool: bool) -> Published:
    """One round trip. `by_pool` False: slices summed over pools, for those who see none."""
    names = [
        SLICES if by_pool else SLICES_BY_MODEL,
        SLICES_BY_TENANT,
        SLICES_TOTAL,
        POOL,
        POOL_HISTORY,
    ]
    try:
        found = cast("list[bytes | None]", store().hmget(keys.LIVE, names))
    except RedisError as error:
        logger.info("live state not read, the store is away: %s", error)
        found = [None] * len(names)
    return Published(
        slices=_decoded(decode_live_slices, found[0]),
        tenants=_decoded(decode_live_slices, found[1]),
        total=_decoded(decode_live_slices, found[2]),
        pool=_decoded(decode_live_pool, found[3]),
        history=_decoded(decode_live_history, found[4]),
    )


def _decoded(decode: "Any", raw: bytes | None) -> Any:
    if raw is None:
        return None
    try:
        return decode(raw)
    except msgspec.MsgspecError:
        logger.warning("live state cannot be read")
        return None
