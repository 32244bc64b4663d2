"""What tenants offer now, and what they usually offer: inputs of playbooks. Unknown is None."""

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import cast

import msgspec
from django.db.models import Sum
from redis.exceptions import RedisError

from console.web.live_state import age_of_ms
from console.web.store import store
from routing.contracts.live import (
    POOL,
    SLICES_BY_TENANT,
    SLICES_TOTAL,
    LiveSlices,
    decode_live_pool,
    decode_live_slices,
)
from routing.store import keys
from telemetry.models import SliceMinute

logger = logging.getLogger(__name__)

STALE_AFTER_S = 10.0  # ten periods of the collector: older figures say nothing about now
_MINUTE = timedelta(minutes=1)
Spans = Sequence[tuple[datetime, datetime]]


@dataclass(frozen=True, slots=True)
class Offered:
    """Input tokens that a tenant offered a minute, refused ones estimated, over the last one."""

    tenant_id: int
    tokens_per_min: float


@dataclass(frozen=True, slots=True)
class Figures:
    """All traffic in the last minute, and the engines now."""

    requests_per_min: float
    refused_per_min: float
    ttft_p95_s: float | None
    kv_max_ratio: float | None
    waiting: int | None


def offered_by_tenant() -> list[Offered] | None:
    """Every tenant with traffic, largest first; None while the collector or the store is away."""
    live = _slices(SLICES_BY_TENANT)
    if live is None or age_of_ms(live.at_ms) > STALE_AFTER_S:
        return None
    found = [
        Offered(
            int(row.tenant_id),
            (row.input_tokens + row.refused_input_tokens) * 60 / live.window_s,
        )
        for row in live.rows
        if row.tenant_id.isascii() and row.tenant_id.isdigit()
    ]
    return sorted(found, key=lambda one: (-one.tokens_per_min, one.tenant_id))


def usual_offers(
    tenant_ids: Collection[int],
    *,
    now: datetime,
    minutes: int,
    least_minutes: int,
    skipping: Mapping[int, Spans],
) -> dict[int, float]:
    """Tokens a minute that a tenant usually offers: the lower quartile of its recent minutes.

    Not the median: a tenant that is loud half of the time would be measured against its own noise.
    Minutes inside the spans of `skipping` do not count; nor does one before which there was no
    traffic (it may hold a few seconds of it), nor the one that has just ended, which lies in the
    window that the present rate is measured over. A tenant with fewer than `least_minutes` of them
    is not in the result.
    """
    last = now.replace(second=0, microsecond=0) - timedelta(minutes=1)
    rows = (
        SliceMinute.objects.filter(
            tenant_id__in=list(tenant_ids),
            minute_at__gte=last - timedelta(minutes=minutes + 1),
            minute_at__lt=last,
        )
        .values_list("tenant_id", "minute_at")
        .annotate(admitted=Sum("input_tokens"), refused=Sum("refused_input_tokens"))
    )
    by_tenant: dict[int, dict[datetime, int]] = {}
    for tenant_id, minute_at, admitted, refused in rows:
        by_tenant.setdefault(tenant_id, {})[minute_at] = admitted + refused
    found = {}
    for tenant_id, offered in by_tenant.items():
        values = sorted(
            tokens
            for minute_at, tokens in offered.items()
            if minute_at - _MINUTE in offered
            and not _is_inside(minute_at, skipping.get(tenant_id, ()))
        )
        if len(values) >= least_minutes:
            found[tenant_id] = float(values[(len(values) - 1) // 4])
    return found


def _is_inside(minute_at: datetime, spans: Spans) -> bool:
    return any(minute_at < end and minute_at + _MINUTE > start for start, end in spans)


def figures() -> Figures | None:
    """Headline figures now; None while the collector or the store is away."""
    live = _slices(SLICES_TOTAL)
    if live is None or not live.rows or age_of_ms(live.at_ms) > STALE_AFTER_S:
        return None
    total, scale = live.rows[0], 60 / live.window_s
    raw = _field(POOL)
    states = decode_live_pool(raw).rows if raw is not None else []
    ratios = [one.kv_usage_ratio for one in states if one.kv_usage_ratio is not None]
    waits = [one.waiting for one in states if one.waiting is not None]
    return Figures(
        requests_per_min=total.requests * scale,
        refused_per_min=total.refused * scale,
        ttft_p95_s=total.ttft_p95_s,
        kv_max_ratio=max(ratios, default=None),
        waiting=sum(waits) if waits else None,
    )


def _slices(name: str) -> LiveSlices | None:
    raw = _field(name)
    try:
        return decode_live_slices(raw) if raw is not None else None
    except msgspec.MsgspecError:
        logger.warning("live state cannot be read")
        return None


def _field(name: str) -> bytes | None:
    try:
        return cast("bytes | None", store().hget(keys.LIVE, name))
    except RedisError as error:
        logger.info("live state not read, the store is away: %s", error)
        return None
