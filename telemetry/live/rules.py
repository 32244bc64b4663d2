"""Live figures: what each one is, who may see it, and how a viewer's copy is kept current.

Figures of `slices` (rows: tenant x model x pool; tenants themselves: tenant x model; grouped:
tenant, or one row `total`):

| field | meaning |
|---|---|
| requests_per_s | requests that ended in the last 60 s, failed and cancelled ones too, over 60 s |
| input_tok_per_s, output_tok_per_s | their tokens over 60 s |
| ttft_p50_ms, ttft_p95_ms, ttft_p99_ms | accept to first output token at the gateway, over first
  tokens that all gateways sent in the last 60 s: quantiles of the merged sketches, within 1 %; null
  without samples, p99 null below 30 |
| ttft_count | samples behind them |
| failed, refused | requests that failed; requests refused before a replica; last 60 s |
| spend_usd | settled spend of requests ended since `spend_since`: the running minute and the
  fourteen before it; exact decimal text |
| spend_minutes_nanousd | the same by minute, oldest first (grouped rows only) |

A first token counts when it is sent, everything else when the request ends; both in the second in
which the gateway reports them, at most one second later.

Figures of `pool` (rows: replicas): as last scraped, `age` seconds ago when that is over three
periods. kv_usage_ratio is used over total KV blocks as the engine reports it; *_tok_per_s are rises
of the engine's counters over the last period, null across a restart.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl

import msgspec

from console.web.units import usd_text
from routing.contracts.endpoint_state import EndpointState
from routing.contracts.live import (
    POOL,
    SLICES,
    SLICES_BY_MODEL,
    SLICES_BY_TENANT,
    SLICES_TOTAL,
    LivePool,
    LiveSlice,
    LiveSlices,
)

ROWS_MAX = 200
ROWS_DEFAULT = 50
FRAME_BYTES_MAX = 64 * 1024
_ROWS_BYTES_MAX = FRAME_BYTES_MAX - 2048  # the rest of a frame: names of fields, ages
QUERY_CHARS_MAX = 500
RESNAP_S = 5.0  # new members or order reach a viewer at most this often
FRAME_S = 1.0  # least time between two frames of a subscription
STALE_AFTER_S = 3.0

CHANNEL_SLICES, CHANNEL_POOL = "slices", "pool"
_PARAMETERS = {
    CHANNEL_SLICES: frozenset({"tenant", "model", "pool", "group", "limit"}),
    CHANNEL_POOL: frozenset({"pool", "limit"}),
}
_GROUPS = {"": SLICES, "slice": SLICES, "tenant": SLICES_BY_TENANT, "total": SLICES_TOTAL}

SLICE_FIELDS = (
    "id", "tenant", "model", "pool", "requests_per_s", "input_tok_per_s", "output_tok_per_s",
    "ttft_p50_ms", "ttft_p95_ms", "ttft_p99_ms", "ttft_count", "failed", "refused", "spend_usd",
    "spend_minutes_nanousd",
)  # fmt: skip
POOL_FIELDS = (
    "id", "pool", "health", "reason", "kv_usage_ratio", "running", "waiting", "prompt_tok_per_s",
    "generation_tok_per_s", "version",
)  # fmt: skip

Row = list[Any]
State = LiveSlices | LivePool


@dataclass(frozen=True, slots=True)
class Access:
    """What a signed-in person may see. `tenants` (id -> slug) None: every tenant."""

    user_id: int
    username: str
    sees_pools: bool
    tenants: Mapping[str, str] | None

    def covers(self, before: "Access") -> bool:
        """Whether nothing that was visible before is hidden now."""
        if before.user_id != self.user_id or (before.sees_pools and not self.sees_pools):
            return False
        if self.tenants is None:
            return True
        return before.tenants is not None and before.tenants.keys() <= self.tenants.keys()

    @property
    def sees_nothing(self) -> bool:
        """Whether no row of any channel is visible."""
        return not self.sees_pools and self.tenants is not None and not self.tenants


@dataclass(frozen=True, slots=True)
class Query:
    """A subscription's rows: a channel, a grouping, filters."""

    channel: str
    group: str = ""
    tenant: str = ""
    model: str = ""
    pool: str = ""
    limit: int = ROWS_DEFAULT


def parse_query(channel: str, text: str) -> Query | None:
    """The query of a subscription, or None when channel or parameters are not known."""
    allowed = _PARAMETERS.get(channel)
    if allowed is None or len(text) > QUERY_CHARS_MAX:
        return None
    values = dict(parse_qsl(text, keep_blank_values=True))
    if not values.keys() <= allowed or values.get("group", "") not in _GROUPS:
        return None
    limit = values.pop("limit", str(ROWS_DEFAULT))
    if not (limit.isascii() and limit.isdigit() and len(limit) <= 4 and int(limit) > 0):
        return None
    return Query(channel=channel, limit=min(int(limit), ROWS_MAX), **values)


def is_allowed(query: Query, access: Access) -> bool:
    """Whether a person may ask this. What is not visible in an allowed query is left out."""
    if (query.channel == CHANNEL_POOL or query.pool) and not access.sees_pools:
        return False
    if access.tenants is None:
        return True
    if query.group == "total" or not access.tenants:
        return False
    return not query.tenant or query.tenant in access.tenants.values()


def source_of(query: Query, access: Access) -> str:
    """Field of the published state that holds the rows."""
    if query.channel == CHANNEL_POOL:
        return POOL
    source = _GROUPS[query.group]
    return SLICES_BY_MODEL if source == SLICES and not access.sees_pools else source


@dataclass(frozen=True, slots=True)
class View:
    """One query's rows at one published state.

    `ages`: position in `rows` -> seconds, of stale rows. `more`: rows left out by the bounds.
    """

    epoch: str
    seq: int
    at_ms: int
    fields: tuple[str, ...]
    rows: list[Row]
    ages: dict[int, int] = field(default_factory=dict)
    more: int = 0
    facts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def ids(self) -> list[str]:
        """Row ids in order."""
        return [row[0] for row in self.rows]


def view_of(state: State, query: Query, access: Access) -> View:
    """What the query shows of a state to this person."""
    if isinstance(state, LivePool):
        return _pool_view(state, query)
    visible = [row for row in state.rows if _shows(row, query, access)]
    chosen = sorted(visible, key=lambda row: (-row.requests, -row.spend_nanousd, row.id))
    kept = {row.id for row in chosen[: query.limit]}
    rows = [_slice_row(row, state.window_s) for row in visible if row.id in kept]
    rows = _fitting(rows)
    return View(
        epoch=state.epoch,
        seq=state.seq,
        at_ms=state.at_ms,
        fields=SLICE_FIELDS,
        rows=rows,
        more=len(visible) - len(rows),
        facts={
            "window_s": state.window_s,
            "spend_since": state.spend_since_ms / 1000,
            "reported_at": None if state.frames_at_ms is None else state.frames_at_ms / 1000,
        },
    )


def _shows(row: LiveSlice, query: Query, access: Access) -> bool:
    if access.tenants is not None and row.tenant_id not in access.tenants:
        return False
    return all(
        not wanted or wanted == found
        for wanted, found in (
            (query.tenant, row.tenant),
            (query.model, row.model),
            (query.pool, row.pool),
        )
    )


def _slice_row(row: LiveSlice, window_s: int) -> Row:
    return [
        row.id,
        row.tenant,
        row.model,
        row.pool,
        round(row.requests / window_s, 3),
        round(row.input_tokens / window_s, 1),
        round(row.output_tokens / window_s, 1),
        _ms(row.ttft_p50_s),
        _ms(row.ttft_p95_s),
        _ms(row.ttft_p99_s),
        row.ttft_count,
        row.failed,
        row.refused,
        usd_text(row.spend_nanousd),
        list(row.spend_minutes_nanousd),
    ]


def _pool_view(state: LivePool, query: Query) -> View:
    visible = [row for row in state.rows if not query.pool or row.pool == query.pool]
    rows = _fitting([_replica_row(row) for row in visible[: query.limit]])
    ages = {
        position: int((state.at_ms - row.at_ms) / 1000)
        for position, row in enumerate(visible[: len(rows)])
        if row.at_ms and state.at_ms - row.at_ms > STALE_AFTER_S * 1000
    }
    return View(
        epoch=state.epoch,
        seq=state.seq,
        at_ms=state.at_ms,
        fields=POOL_FIELDS,
        rows=rows,
        ages=ages,
        more=len(visible) - len(rows),
    )


def _replica_row(row: EndpointState) -> Row:
    return [
        row.replica_id,
        row.pool,
        row.health.value,
        row.reason,
        None if row.kv_usage_ratio is None else round(row.kv_usage_ratio, 4),
        row.running,
        row.waiting,
        _rounded(row.prompt_tokens_per_s),
        _rounded(row.generation_tokens_per_s),
        row.engine_version,
    ]


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 1)


def _ms(value_s: float | None) -> float | None:
    return None if value_s is None else round(value_s * 1000, 1)


def _fitting(rows: list[Row]) -> list[Row]:
    """As many leading rows as a frame holds."""
    size = 0
    for position, row in enumerate(rows):
        size += len(msgspec.json.encode(row)) + 1
        if size > _ROWS_BYTES_MAX:
            return rows[:position]
    return rows


@dataclass(frozen=True, slots=True)
class Held:
    """What a viewer holds of a subscription. `order` names the rows and their order."""

    epoch: str
    seq: int
    rows: list[Row]
    snapped_at_s: float
    ages: dict[int, int] = field(default_factory=dict)

    @property
    def ids(self) -> list[str]:
        """Row ids in the viewer's order."""
        return [row[0] for row in self.rows]


def first_held(view: View, order: object, now_s: float) -> Held | None:
    """The viewer's copy when it resumes from this view with its rows in this `order`."""
    if order != order_of(view.ids):
        return None
    return Held(view.epoch, view.seq, view.rows, snapped_at_s=now_s, ages=view.ages)


def advance(
    number: int, held: Held | None, view: View, now_s: float
) -> tuple[dict[str, Any] | None, Held]:
    """The frame that brings a viewer's copy of subscription `number` to `view`, if any.

    A changed row travels whole, under its position. While new members or another order wait for
    `RESNAP_S`, rows that are still there go on being updated in their old places.
    """
    if held is not None and (held.epoch, held.seq) == (view.epoch, view.seq):
        return None, held
    if held is None or (held.ids != view.ids and now_s - held.snapped_at_s >= RESNAP_S):
        return _snap(number, view), Held(view.epoch, view.seq, view.rows, now_s, view.ages)
    return _tick(number, held, view)


def _snap(number: int, view: View) -> dict[str, Any]:
    return {
        "t": "snap",
        "id": number,
        "epoch": view.epoch,
        "seq": view.seq,
        "ts": view.at_ms / 1000,
        "f": view.fields,
        "rows": view.rows,
        "order": order_of(view.ids),
        "age": sorted(view.ages.items()),
        "more": view.more,
        **view.facts,
    }


def _tick(number: int, held: Held, view: View) -> tuple[dict[str, Any], Held]:
    position_in_view = {row_id: position for position, row_id in enumerate(view.ids)}
    rows, changed, ages = list(held.rows), [], {}
    for position, row in enumerate(held.rows):
        source = position_in_view.get(row[0])
        if source is None:
            continue
        if source in view.ages:
            ages[position] = view.ages[source]
        if view.rows[source] != row:
            rows[position] = view.rows[source]
            changed.append([position, *view.rows[source][1:]])
    frame = {
        "t": "tick",
        "id": number,
        "epoch": view.epoch,
        "seq": view.seq,
        "ts": view.at_ms / 1000,
        "d": changed,
        "age": sorted(ages.items()),
        **view.facts,
    }
    return frame, Held(view.epoch, view.seq, rows, held.snapped_at_s, ages)


def order_of(ids: Sequence[str]) -> str:
    """Short name of rows in an order: a viewer that resumes with it holds the same rows."""
    return hashlib.blake2s("\0".join(ids).encode(), digest_size=6).hexdigest()
