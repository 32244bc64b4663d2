"""The live page's first response: the same rows that the socket sends, as cells and chart figures.

The page works from this alone; the script takes the figures and goes on from them.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from console.web import units
from routing.contracts.enums import ReplicaHealth
from routing.contracts.live import LivePoolHistory
from telemetry.live.rules import STALE_AFTER_S, Access, Query, State, View, view_of
from telemetry.live.selectors import Published
from telemetry.slices.rules import MINUTE_S, Point
from telemetry.stats.figures import SPEND_MINUTES

CHART_S = 900  # width of every chart
REPLICAS_DRAWN = 16  # eight colours, each solid and dashed
TENANTS_DRAWN = 8


@dataclass(frozen=True, slots=True)
class Column:
    """A column that both sides fill: `kind` says how (`text`, `int`, `rate`, `tok`, ...)."""

    field: str
    name: str
    kind: str = "text"
    unit: str = ""
    meaning: str = ""

    @property
    def is_number(self) -> bool:
        """Whether it is aligned to the right."""
        return self.kind not in ("text", "state")


LAST_60_S = "of the last 60 s"
_REQUESTS = Column(
    "requests_per_s", "Requests", "rate", "/s", f"Requests that ended, mean {LAST_60_S}"
)
_REFUSED = Column(
    "refused",
    "Refused",
    "int",
    "",
    f"Requests refused, not failed: by a limit, or invalid, {LAST_60_S}",
)
_SPEND = Column(
    "spend_usd", "Spend", "usd", "USD", "Settled in the running minute and the 14 before"
)
SLICE_COLUMNS = (
    Column("tenant", "Tenant"),
    Column("model", "Model"),
    Column("pool", "Pool"),
    _REQUESTS,
    Column("input_tok_per_s", "Input", "tok", "tok/s", f"Their input tokens, mean {LAST_60_S}"),
    Column("output_tok_per_s", "Output", "tok", "tok/s", f"Their output tokens, mean {LAST_60_S}"),
    Column(
        "ttft_p50_ms", "TTFT p50", "ms", "ms", f"Accept to first token, first tokens {LAST_60_S}"
    ),
    Column("ttft_p95_ms", "p95", "ms", "ms", f"Accept to first token, first tokens {LAST_60_S}"),
    Column("ttft_p99_ms", "p99", "ms", "ms", "Unknown below 30 samples"),
    Column("failed", "Failed", "int", "", f"Requests that failed, {LAST_60_S}"),
    _REFUSED,
    _SPEND,
)
TENANT_COLUMNS = (
    Column("tenant", "Tenant"),
    _REQUESTS,
    Column(
        "ttft_p95_ms", "TTFT p95", "ms", "ms", f"Accept to first token, first tokens {LAST_60_S}"
    ),
    _REFUSED,
    _SPEND,
)
REPLICA_COLUMNS = (
    Column("id", "Replica"),
    Column("pool", "Pool"),
    Column("health", "State", "state", "", "Health as the collector sees it"),
    Column("kv_usage_ratio", "KV", "pct", "%", "Used over total KV blocks, as the engine reports"),
    Column("running", "Running", "int", "", "Requests being computed"),
    Column("waiting", "Waiting", "int", "", "Requests queued inside the engine"),
    Column("prompt_tok_per_s", "Input", "tok", "tok/s", "Prompt tokens over the last second"),
    Column("generation_tok_per_s", "Output", "tok", "tok/s", "Output tokens over the last second"),
    Column("age", "Scraped", "age", "", "Age of the last good scrape"),
)


@dataclass(frozen=True, slots=True)
class Cell:
    """One value: as text, and `raw` as the socket sends it."""

    column: Column
    text: str
    raw: str


@dataclass(frozen=True, slots=True)
class TableRow:
    """One row of a live table."""

    id: str
    cells: list[Cell]
    is_stale: bool = False


@dataclass(frozen=True, slots=True)
class Table:
    """A live table: what the script subscribes to, and its rows now."""

    channel: str
    query: str
    columns: tuple[Column, ...]
    rows: list[TableRow] = field(default_factory=list)
    more: int = 0


def table(
    channel: str,
    query_text: str,
    columns: tuple[Column, ...],
    view: View | None,
    old_s: float | None = None,
) -> Table:
    """The table of a view; a view that is not known has no rows.

    `old_s`: age of the whole state when it is stale, which every row then is.
    """
    if view is None:
        return Table(channel, query_text, columns)
    rows = []
    for position, row in enumerate(view.rows):
        values = dict(zip(view.fields, row, strict=True))
        own_age_s = view.ages.get(position)
        values["age"] = own_age_s if old_s is None else old_s
        if values["age"] is not None and values.get("health") == ReplicaHealth.OK:
            values["health"] = ReplicaHealth.STALE.value
        cells = [
            Cell(column, text_of(column.kind, values[column.field]), raw_of(values[column.field]))
            for column in columns
        ]
        rows.append(TableRow(id=str(row[0]), cells=cells, is_stale=own_age_s is not None))
    return Table(channel, query_text, columns, rows, view.more)


_TEXTS: Mapping[str, Callable[[Any], str]] = {
    "rate": lambda value: units.decimal(value, 2),
    "tok": lambda value: units.decimal(value, 0),
    "ms": lambda value: units.decimal(value, 0),
    "int": units.count,
    "pct": lambda value: units.decimal(value * 100, 1),
    "usd": lambda value: units.usd_short(units.parse_usd(value)),
}


def text_of(kind: str, value: Any) -> str:
    """A value on screen. `live_tables.js` writes the same."""
    if kind == "age":
        return "now" if value is None else f"◌ {units.age(value)} old"
    if value is None or value == "":
        return units.UNKNOWN
    return _TEXTS.get(kind, str)(value)


def raw_of(value: Any) -> str:
    """The value in a data attribute; empty is unknown."""
    return "" if value is None else str(value)


def view_or_none(state: State | None, query: Query, access: Access) -> View | None:
    """`view_of`, for a state that may be unknown."""
    return None if state is None else view_of(state, query, access)


def age_s_of(published: Published, now_s: float) -> float | None:
    """How old the collector's newest state is; None when there is none."""
    newest = published.total or published.pool
    return None if newest is None else max(0.0, now_s - newest.at_ms / 1000)


def state_words(age_s: float | None) -> tuple[str, str]:
    """Tone and words of the page's badge without script."""
    if age_s is None:
        return "stale", "no figures yet"
    if age_s > STALE_AFTER_S:
        return "stale", f"stale, {units.age(age_s)} old"
    return "ok", f"live {units.age(age_s)}"


def chart_figures(
    points: Sequence[Point],
    history: LivePoolHistory | None,
    tenants: View | None,
    now_s: float,
    age_s: float | None,
) -> Mapping[str, Any]:
    """What the charts begin with: minutes of TTFT (ms), KV occupancy (0..1), spend by minute.

    `at` is the instant of the newest state, None when there is none.
    """
    return {
        "now": round(now_s, 3),
        "at": None if age_s is None else round(now_s - age_s, 3),
        "width_s": CHART_S,
        "stale_after_s": STALE_AFTER_S,
        "ttft": _ttft([point for point in points if point.at_s + MINUTE_S <= now_s]),
        "kv": _kv(history),
        "spend": _spend(tenants),
        "replicas_drawn": REPLICAS_DRAWN,
        "tenants_drawn": TENANTS_DRAWN,
    }


def _ttft(points: Sequence[Point]) -> Mapping[str, Any]:
    """Ended minutes, each at its end; the running one is left to the socket."""
    columns = list(zip(*(point.ttft_ms for point in points), strict=True)) or [(), (), ()]
    return {
        "at": [point.at_s + MINUTE_S for point in points],
        "p50_ms": columns[0],
        "p95_ms": columns[1],
        "p99_ms": columns[2],
    }


def _kv(history: LivePoolHistory | None) -> Mapping[str, Any]:
    if history is None:
        return {"at": [], "replicas": {}}
    longest = max((len(values) for values in history.kv_usage_ratio.values()), default=0)
    at = [history.at_ms / 1000 - history.step_s * back for back in reversed(range(longest))]
    replicas: dict[str, list[float | None]] = {}
    for name, values in history.kv_usage_ratio.items():
        missing: list[float | None] = [None] * (longest - len(values))
        replicas[name] = missing + [None if v is None else round(v, 4) for v in values]
    return {"at": at, "replicas": replicas}


def _spend(tenants: View | None) -> Mapping[str, Any]:
    if tenants is None:
        return {"since": None, "minutes": SPEND_MINUTES, "tenants": []}
    name = tenants.fields.index("tenant")
    minutes = tenants.fields.index("spend_minutes_nanousd")
    return {
        "since": tenants.facts["spend_since"],
        "minutes": SPEND_MINUTES,
        "tenants": [{"name": row[name], "nanousd": row[minutes]} for row in tenants.rows],
    }


def instant(seconds: float | None) -> datetime | None:
    """An aware instant of Unix seconds."""
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC)
