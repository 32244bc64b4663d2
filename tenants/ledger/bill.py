"""Why the bill is what it is: sums of two periods side by side, from rollups."""

from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db import connection
from django.db.models import F, Sum

from tenants.ledger.rules.periods import cover
from tenants.ledger.selectors import periods_filter
from tenants.models import UsageRollup

MAX_MOVERS = 12  # of each dimension: the largest changes explain a bill, the rest is small
DIMENSIONS = ("tenant", "model", "key", "class")


@dataclass(frozen=True, slots=True)
class Side:
    """What one subject took in one period."""

    spend_nanousd: int
    requests: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Mover:
    """A subject now and in the period before."""

    dimension: str
    subject: str
    label: str
    now: Side
    before: Side

    @property
    def change_nanousd(self) -> int:
        """Rise of its spend."""
        return self.now.spend_nanousd - self.before.spend_nanousd

    @property
    def tokens_ratio(self) -> float | None:
        """Tokens against the period before; None when there were none."""
        return self.now.tokens / self.before.tokens if self.before.tokens else None


@dataclass(frozen=True, slots=True)
class Bill:
    """Both periods as a whole, and who moved most in each dimension."""

    now: Side
    before: Side
    movers: dict[str, tuple[Mover, ...]]

    @property
    def change_nanousd(self) -> int:
        """Rise of the whole bill."""
        return self.now.spend_nanousd - self.before.spend_nanousd


@dataclass(frozen=True, slots=True)
class PoolTokens:
    """Tokens that a pool served in a period."""

    pool: str
    uncached_tokens: int
    cached_tokens: int
    output_tokens: int
    requests: int


def bill(*, until: datetime, length: timedelta) -> Bill:
    """The `length` before `until` against the same length before that: one query.

    Both edges are widened to whole minutes as all sums from rollups are.
    """
    since = until - length
    now, now_values = _covering(since, until)
    before, before_values = _covering(since - length, since)
    sums = ", ".join(
        f"coalesce(sum({amount}) FILTER (WHERE side = {side}), 0)"
        for side in (1, 0)
        for amount in ("spend_nanousd", "requests", "input_tokens + output_tokens")
    )
    with connection.cursor() as cursor:
        cursor.execute(
            "WITH sides AS ("  # noqa: S608 - the conditions hold placeholders only
            f" SELECT r.*, 1 AS side FROM tenants_usagerollup r WHERE {now} UNION ALL"
            f" SELECT r.*, 0 AS side FROM tenants_usagerollup r WHERE {before})"
            " SELECT CASE WHEN grouping(tenant_id) = 0 THEN 'tenant'"
            "  WHEN grouping(s.model) = 0 THEN 'model' WHEN grouping(key_id) = 0 THEN 'key'"
            "  WHEN grouping(work_class) = 0 THEN 'class' ELSE '' END AS dimension,"
            " coalesce(tenant_id::text, s.model, key_id::text, work_class, ''),"
            f" {sums} FROM sides s"
            " GROUP BY GROUPING SETS ((tenant_id), (s.model), (key_id), (work_class), ())",
            [*now_values, *before_values],
        )
        found = cursor.fetchall()
    rows = [(row[0], row[1], Side(*map(int, row[2:5])), Side(*map(int, row[5:8]))) for row in found]
    whole = next((row for row in rows if not row[0]), ("", "", Side(0, 0, 0), Side(0, 0, 0)))
    movers = {
        dimension: tuple(
            sorted(
                (Mover(*row[:2], row[1], *row[2:]) for row in rows if row[0] == dimension),
                key=lambda one: (-abs(one.change_nanousd), one.subject),
            )[:MAX_MOVERS]
        )
        for dimension in DIMENSIONS
    }
    return Bill(whole[2], whole[3], movers)


def tokens_by_pool(since: datetime, until: datetime) -> tuple[PoolTokens, ...]:
    """Tokens of [since, until), widened to minutes, by pool: one query."""
    rows = (
        UsageRollup.objects.filter(periods_filter(since, until))
        .exclude(pool="")
        .order_by()
        .values(name=F("pool"))
        .annotate(
            whole=Sum("input_tokens"),
            cached=Sum("cached_tokens"),
            output=Sum("output_tokens"),
            count=Sum("requests"),
        )
        .order_by("name")
    )
    return tuple(
        PoolTokens(
            row["name"], row["whole"] - row["cached"], row["cached"], row["output"], row["count"]
        )
        for row in rows
    )


def _covering(since: datetime, until: datetime) -> tuple[str, list[str | datetime]]:
    """Condition for the rollup rows that cover a period, each once, and its values."""
    parts = list(cover(since, until))
    text = " OR ".join("(grain = %s AND start_at >= %s AND start_at < %s)" for _ in parts)
    return text or "false", [
        value for part in parts for value in (part.grain, part.since, part.until)
    ]
