"""Filters of the usage list and time ranges of the spend page, as they stand in an address."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import Any

from console.errors import InvalidInput
from console.web import units
from console.web.keyset import parse_id
from routing.contracts.enums import RequestStatus
from tenants.ledger.selectors import UsageLine, usage_page

RANGES = {
    "15m": (timedelta(minutes=15), "15 min"),
    "1h": (timedelta(hours=1), "1 h"),
    "6h": (timedelta(hours=6), "6 h"),
    "24h": (timedelta(hours=24), "24 h"),
    "7d": (timedelta(days=7), "7 d"),
    "30d": (timedelta(days=30), "30 d"),
}
DEFAULT_RANGE = "24h"
EXPORT_BATCH = 200
MAX_EXPORTED = 100_000  # one download; the rest follows with a narrower filter
CSV_HEADER = (
    "ended_at", "started_at", "request_id", "tenant", "project", "key", "key_prefix",
    "model_asked", "model", "status", "usage_source", "work_class", "http_status", "error_code",
    "input_tokens", "cached_tokens", "output_tokens", "spend_usd", "adjusted_usd", "net_usd",
    "held_usd", "ttft_ms", "duration_ms", "policy", "price_version", "task_id",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class UsageFilter:
    """What the usage list shows; empty values do not filter. Days are UTC days."""

    since: date | None = None
    until: date | None = None
    key_id: int | None = None
    model: str = ""
    status: str = ""

    def arguments(self) -> dict[str, Any]:
        """The filter as arguments of `usage_page`."""
        return {
            "since": self.since,
            "until": self.until,
            "key_id": self.key_id,
            "model": self.model,
            "status": self.status,
        }

    @property
    def is_empty(self) -> bool:
        """Whether it filters nothing."""
        return self == UsageFilter()


def usage_filter(query: Mapping[str, str]) -> UsageFilter:
    """The filter in a query string; raises `InvalidInput` with the parameter at fault."""
    status = query.get("status", "")
    if status and status not in set(RequestStatus):
        raise InvalidInput("status: there is no such one.", field="status")
    since, until = _day(query, "since"), _day(query, "until")
    if since and until and until < since:
        raise InvalidInput("until: this day is before the first one.", field="until")
    return UsageFilter(
        since=since,
        until=until,
        key_id=parse_id(query.get("key"), "key"),
        model=query.get("model", "").strip()[:200],
        status=status,
    )


def csv_batches(
    tenant_ids: frozenset[int] | None, chosen: UsageFilter
) -> Iterator[list[list[object]]]:
    """Rows of the filtered list for an export, newest first, then one row of totals."""
    after: str | None = None
    rows, spend, net = 0, 0, 0
    tokens = [0, 0, 0]
    while rows < MAX_EXPORTED:
        page = usage_page(
            tenant_ids=tenant_ids, after=after, limit=EXPORT_BATCH, **chosen.arguments()
        )
        yield [cells(line) for line in page.rows]
        rows += len(page.rows)
        spend += sum(line.spend_nanousd for line in page.rows)
        net += sum(line.net_nanousd for line in page.rows)
        tokens = [total + more for total, more in zip(tokens, _tokens(page.rows), strict=True)]
        after = page.next_after
        if after is None:
            break
    total: dict[str, object] = {
        "ended_at": "total" if after is None else f"total of the first {rows} rows",
        "input_tokens": tokens[0],
        "cached_tokens": tokens[1],
        "output_tokens": tokens[2],
        "spend_usd": units.usd_text(spend),
        "adjusted_usd": units.usd_text(net - spend),
        "net_usd": units.usd_text(net),
    }
    yield [[total.get(name, "") for name in CSV_HEADER]]


def cells(line: UsageLine) -> list[object]:
    """One exported row, in the order of `CSV_HEADER`."""
    return [
        line.ended_at.isoformat(timespec="milliseconds"),
        line.started_at.isoformat(timespec="milliseconds"),
        line.request_id,
        line.tenant,
        line.project,
        line.key,
        line.key_prefix,
        line.model_asked,
        line.model,
        line.status,
        line.usage_source,
        line.work_class,
        line.http_status,
        line.error_code,
        line.input_tokens,
        line.cached_tokens,
        line.output_tokens,
        units.usd_text(line.spend_nanousd),
        units.usd_text(line.adjusted_nanousd),
        units.usd_text(line.net_nanousd),
        units.usd_text(line.held_nanousd),
        _millis(line.started_at, line.first_token_at),
        _millis(line.started_at, line.ended_at),
        line.policy,
        line.price_version,
        line.task_id,
    ]


def _tokens(lines: Iterable[UsageLine]) -> list[int]:
    sums = [0, 0, 0]
    for line in lines:
        sums[0] += line.input_tokens
        sums[1] += line.cached_tokens
        sums[2] += line.output_tokens
    return sums


def _millis(start: datetime, end: datetime | None) -> int | str:
    return "" if end is None else round((end - start).total_seconds() * 1000)


def _day(query: Mapping[str, str], name: str) -> date | None:
    text = query.get(name, "")
    if not text:
        return None
    try:
        return date.fromisoformat(text)
    except ValueError as error:
        raise InvalidInput(f"{name}: write a day as 2025-11-29.", field=name) from error
