"""A shape row as columns of its table."""

from datetime import date, timedelta
from uuid import UUID

from routing.contracts.ids import millis_of
from routing.contracts.usage import MAX_PREFIX_HASHES, ShapeRow
from tenants.ledger.rules.lines import MAX_AHEAD, MAX_AMOUNT, MAX_INT32, Damage, clean, instant

DAYS_KEPT = 7

_TEXTS = {
    "model": 200,
    "work_class": 16,
    "outcome": 80,
    "session": 120,
    "task_id": 120,
    "task_kind": 64,
    "step": 32,
    "pool": 120,
    "replica": 120,
}
_REFUSAL_TEXTS = {"refused_code": 64, "refused_limit": 120, "refused_scope": 24}
_INSTANTS = {
    "arrived_at": "arrived_at_ms",
    "first_token_at": "first_token_at_ms",
    "ended_at": "ended_at_ms",
    "cancelled_at": "cancelled_at_ms",
}
_AMOUNTS = ("max_tokens", "input_tokens", "cached_tokens", "output_tokens")


def first_day_kept(now_ms: int) -> date:
    """The oldest day whose shapes are still kept."""
    return instant(now_ms).date() - timedelta(days=DAYS_KEPT)


def shape_columns(row: ShapeRow, now_ms: int) -> tuple[date, dict[str, object]]:
    """The row's day and its columns as JSON values. Raises `Damage`.

    A request that no tenant could be found for has tenant 0.
    """
    day, request_id = _day(row.request_id, now_ms)
    columns: dict[str, object] = {
        "day": day.isoformat(),
        "request_id": request_id,
        "tenant_id": _number(row.tenant_id),
        "resend_count": min(max(row.resend_count, 0), MAX_INT32),
        "prefix_hashes": row.prefix_hashes[:MAX_PREFIX_HASHES],
        **{name: clean(getattr(row, name), length) for name, length in _TEXTS.items()},
    }
    for column, name in _INSTANTS.items():
        at_ms = getattr(row, name)
        columns[column] = None if at_ms is None else instant(at_ms).isoformat()
    for name in _AMOUNTS:
        amount = getattr(row, name)
        # A client may ask for any max_tokens; the shape needs no more than its bound.
        columns[name] = None if amount is None else min(max(amount, 0), MAX_AMOUNT)
    columns |= _refusal(row)
    return day, columns


def _refusal(row: ShapeRow) -> dict[str, object]:
    """What refused it; all null for a request that nothing refused."""
    names = (*_REFUSAL_TEXTS, "refused_status", "retry_after_ms", "key_id")
    if not row.refused_code:
        return dict.fromkeys(names)
    wait_ms = row.retry_after_ms
    return {
        **{name: clean(getattr(row, name), length) for name, length in _REFUSAL_TEXTS.items()},
        "refused_status": min(max(row.refused_status, 0), MAX_INT32),
        "retry_after_ms": None if wait_ms is None else min(max(wait_ms, 0), MAX_AMOUNT),
        "key_id": _number(row.key_id) or None,
    }


def _day(text: str, now_ms: int) -> tuple[date, str]:
    try:
        request_id = str(UUID(text))
    except ValueError as error:
        raise Damage("request id is no UUID") from error
    at = instant(millis_of(request_id))
    if at > instant(now_ms) + MAX_AHEAD:
        raise Damage("request id names a day too far away")
    return at.date(), request_id


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 18 else 0
