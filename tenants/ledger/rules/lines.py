"""A stream entry becomes a ledger line, or says why it cannot.

Money never goes missing for the sake of a label: texts are cut to their column, cached tokens to
the prompt. What cannot be booked truthfully (a damaged number, no legs' shape, a strange id) is
`Damage`.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from uuid import UUID

import msgspec

from routing.contracts.enums import Dimension, RequestStatus, SettleKind
from routing.contracts.ids import millis_of
from routing.contracts.usage import UsageEvent, charge_of, decode_usage
from tenants.ledger.rules.health import entry_order

MAX_AMOUNT = 2**53  # the store's counters are exact below it; nothing real comes near
MAX_INT32 = 2**31 - 1
MAX_LEGS = 64  # key, tenant, model and class scopes x 4 windows x 2: far above any reservation
MAX_SUFFIX_CHARS = 400
MAX_AGE = timedelta(days=3_660)  # the longest retention: an older id is a damaged one
MAX_AHEAD = timedelta(days=2)  # clocks of gateways are not trusted, nor are they off by days
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
WINDOW_LEG = 1

CounterKey = tuple[str, str, int]  # counter key suffix, dimension, window end in ms

_COUNTED = {
    Dimension.REQUESTS.value: "requests",
    Dimension.INPUT_TOKENS.value: "input_tokens",
    Dimension.OUTPUT_TOKENS.value: "output_tokens",
    Dimension.SPEND_NANOUSD.value: "spend_nanousd",
}
# Columns of `tenants_usage` that a text of the event fills, with their lengths.
_TEXTS = {
    "model_asked": 200,
    "model": 200,
    "pool": 120,
    "replica": 120,
    "region": 64,
    "error_code": 64,
    "policy": 80,
    "upstream_request_id": 200,
    "task_id": 120,
    "task_kind": 64,
    "step": 32,
    "session": 120,
    "parent_id": 120,
    "task_outcome": 16,
    "operation": 24,
}
_AMOUNTS = (
    "input_tokens",
    "cached_tokens",
    "output_tokens",
    "reasoning_tokens",
    "cache_write_tokens",
    "images",
    "spend_nanousd",
    "held_input_tokens",
    "held_output_tokens",
    "held_nanousd",
)


class Damage(Exception):  # noqa: N818 - says what it is
    """Why an entry cannot be booked."""


@dataclass(frozen=True, slots=True)
class Sums:
    """What a line adds: whole units, money in nano-dollars. Differences may be negative."""

    requests: int = 0
    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    spend_nanousd: int = 0

    def minus(self, other: "Sums") -> "Sums":
        """The difference, amount by amount."""
        return Sums(
            self.requests - other.requests,
            self.input_tokens - other.input_tokens,
            self.cached_tokens - other.cached_tokens,
            self.output_tokens - other.output_tokens,
            self.spend_nanousd - other.spend_nanousd,
        )

    def counted(self, dimension: str) -> int:
        """The amount that a counter of this dimension moves by; 0 for what is not counted."""
        name = _COUNTED.get(dimension)
        return 0 if name is None else int(getattr(self, name))


@dataclass(frozen=True, slots=True)
class Slice:
    """By what rollups sum."""

    tenant_id: int
    project_id: int
    key_id: int
    model: str
    pool: str
    work_class: str
    region: str


@dataclass(frozen=True, slots=True)
class Booked:
    """What the ledger holds of a request: its row, and whether a `late` adjustment follows it."""

    request_id: str
    day: date
    kind: SettleKind
    sums: Sums
    counters: tuple[CounterKey, ...]
    slice: Slice
    started_at_ms: int
    has_late: bool = False
    task_id: str = ""


@dataclass(frozen=True, slots=True)
class Line:
    """A valid stream entry: the row that it would be, and the epoch that counted it (0: none)."""

    entry_id: str
    booked: Booked
    epoch: int
    status: RequestStatus
    has_failed: bool
    ended_at_ms: int
    columns: dict[str, object]


def line_of(entry_id: str, fields: Mapping[bytes, bytes]) -> Line:
    """The line of a usage stream entry; the time in its id bounds the day. Raises `Damage`."""
    try:
        epoch = int(fields[b"k"])
        kind = SettleKind(fields[b"t"].decode())
        event = decode_usage(fields[b"e"])
    except KeyError as error:
        raise Damage(f"field {error} is missing") from error
    except (ValueError, msgspec.MsgspecError, RecursionError) as error:
        raise Damage(f"not readable: {error}") from error
    request_id = _request_id(event.request_id)
    day = _day(request_id, entry_order(entry_id)[0])
    _check_amounts(event)
    sums = _sums(kind, event)
    booked = Booked(
        request_id=request_id,
        day=day,
        kind=kind,
        sums=sums,
        counters=counters_of(event.legs),
        slice=_slice(event),
        started_at_ms=event.started_at_ms,
        task_id=clean(event.task_id, _TEXTS["task_id"]),
    )
    return Line(
        entry_id=entry_id,
        booked=booked,
        epoch=epoch,
        status=event.status,
        has_failed=event.has_failed,
        ended_at_ms=event.ended_at_ms,
        columns=_columns(booked, event),
    )


def first_day_kept(now_ms: int, days_kept: int) -> date:
    """The oldest day whose rows are still kept: an older day has no partition, and gets none."""
    return instant(now_ms).date() - timedelta(days=days_kept)


def counters_of(legs: object) -> tuple[CounterKey, ...]:
    """Window counters that legs name. Gauges hold and release, they are never charged."""
    return tuple(_counters(legs))


def _counters(legs: object) -> Iterator[CounterKey]:
    if not isinstance(legs, list) or len(legs) > MAX_LEGS:
        raise Damage("legs are no list, or too many")
    for leg in legs:
        match leg:
            case [int(kind), str(suffix), int() | float() as end, list(pairs), *_]:
                if kind == WINDOW_LEG:
                    _check_leg(suffix, end, pairs)
                    yield from ((suffix, str(name), int(end)) for name in pairs[::2])
            case _:
                raise Damage("a leg has another shape")


def _check_leg(suffix: str, end: float, pairs: list[object]) -> None:
    if not 0 < end < MAX_AMOUNT or len(pairs) % 2:
        raise Damage("a leg's window or amounts are damaged")
    if len(suffix) > MAX_SUFFIX_CHARS or suffix != clean(suffix, MAX_SUFFIX_CHARS):
        raise Damage("a leg's counter name is damaged")


def _request_id(text: str) -> str:
    """As PostgreSQL spells it, so that ids can be compared as text."""
    try:
        return str(UUID(text))
    except ValueError as error:
        raise Damage("request id is no UUID") from error


def _day(request_id: str, now_ms: int) -> date:
    at, now = instant(millis_of(request_id)), instant(now_ms)
    if not now - MAX_AGE <= at <= now + MAX_AHEAD:
        raise Damage("request id names a day too far away")
    return at.date()


def _check_amounts(event: UsageEvent) -> None:
    for name in _AMOUNTS:
        if not 0 <= getattr(event, name) <= MAX_AMOUNT:
            raise Damage(f"{name} is out of range")
    for name in ("attempts", "http_status", "price_version"):
        if not 0 <= getattr(event, name) <= MAX_INT32:
            raise Damage(f"{name} is out of range")
    for name in ("started_at_ms", "first_token_at_ms", "ended_at_ms"):
        value = getattr(event, name)
        if value is not None:
            instant(value)


def _sums(kind: SettleKind, event: UsageEvent) -> Sums:
    charge = charge_of(kind, event)
    inputs = charge.get(Dimension.INPUT_TOKENS.value, 0)
    return Sums(
        requests=charge.get(Dimension.REQUESTS.value, 0),
        input_tokens=inputs,
        cached_tokens=min(event.cached_tokens, inputs),
        output_tokens=charge.get(Dimension.OUTPUT_TOKENS.value, 0),
        spend_nanousd=charge.get(Dimension.SPEND_NANOUSD.value, 0),
    )


def _slice(event: UsageEvent) -> Slice:
    return Slice(
        tenant_id=_number(event.tenant_id, "tenant id"),
        project_id=_number(event.project_id, "project id"),
        key_id=_number(event.key_id, "key id"),
        model=clean(event.model, 200),
        pool=clean(event.pool, 120),
        work_class=event.work_class.value,
        region=clean(event.region, 64),
    )


def _number(text: str, what: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 18):
        raise Damage(f"{what} is no number")
    return int(text)


def _columns(booked: Booked, event: UsageEvent) -> dict[str, object]:
    """Every column of `tenants_usage`, as JSON values."""
    part, sums = booked.slice, booked.sums
    first = event.first_token_at_ms
    return {
        "day": booked.day.isoformat(),
        "request_id": booked.request_id,
        "kind": booked.kind.value,
        "tenant_id": part.tenant_id,
        "key_id": part.key_id,
        "project_id": part.project_id,
        "work_class": part.work_class,
        "status": event.status.value,
        "usage_source": event.usage_source.value,
        "is_suspicious": event.is_suspicious,
        "is_stream": event.is_stream,
        "http_status": event.http_status,
        "started_at": instant(event.started_at_ms).isoformat(),
        "first_token_at": None if first is None else instant(first).isoformat(),
        "ended_at": instant(event.ended_at_ms).isoformat(),
        "input_tokens": sums.input_tokens,
        "cached_tokens": sums.cached_tokens,
        "output_tokens": sums.output_tokens,
        "reasoning_tokens": event.reasoning_tokens if sums.requests else 0,
        "cache_write_tokens": event.cache_write_tokens if sums.requests else 0,
        "images": min(event.images, MAX_INT32) if sums.requests else 0,
        "spend_nanousd": sums.spend_nanousd,
        "held_input_tokens": event.held_input_tokens,
        "held_output_tokens": event.held_output_tokens,
        "held_nanousd": event.held_nanousd,
        "attempts": event.attempts,
        "price_version": event.price_version,
        "task_score": None if event.task_score is None else min(max(event.task_score, 0.0), 1.0),
        "gateway": clean(event.gateway_id, 64),
        "hops_us": {clean(name, 80): hop for name, hop in event.hops_us.items()},
        "legs": event.legs,
        **{name: clean(getattr(event, name), length) for name, length in _TEXTS.items()},
    }


def instant(at_ms: int) -> datetime:
    """Aware UTC time of Unix milliseconds. Raises `Damage` outside the calendar."""
    try:
        return EPOCH + timedelta(milliseconds=at_ms)
    except OverflowError as error:
        raise Damage("an instant is out of range") from error


def clean(text: str, length: int) -> str:
    """Text that a column takes: no NUL, no lone surrogates, at most `length` characters."""
    if not text.isascii() or "\x00" in text:
        text = text.replace("\x00", "\ufffd").encode("utf-8", "replace").decode("utf-8")
    return text[:length]
