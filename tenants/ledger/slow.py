"""Why is P99 up: the slowest requests of a window against the same window an hour before.

Everything is read from ledger rows. Rows are found by their ids, which begin with the time
(UUIDv7), so a window costs its own rows only; beyond `MAX_ROWS` of each window the newest are
read, and the answer says so.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta

from django.db import connection

MAX_ROWS = 50_000  # of each window: about a second of work
MIN_SAMPLES = 30  # below, a p99 would be the maximum under another name
DIMENSIONS = ("tenant", "model", "pool", "class", "replica")
_SUBJECTS = 8  # of each dimension


@dataclass(frozen=True, slots=True)
class Phases:
    """One window's requests as a whole or of one subject. Times in ms, None without samples.

    `ttft` is accept to first token: waiting and prefill. `decode` is first token to end.
    `hit_ratio` is the share of input tokens that came from the prefix cache.
    """

    count: int
    ttft_p50_ms: float | None
    ttft_p99_ms: float | None
    decode_p99_ms: float | None
    hit_ratio: float | None
    input_mean_tokens: float | None
    output_mean_tokens: float | None


@dataclass(frozen=True, slots=True)
class Suspect:
    """One subject in both windows, with how much of the slow tail is its own.

    `tail` counts its requests slower than the earlier window's p99; `excess` how many more that is
    than one in a hundred, which is what would be there had nothing changed.
    """

    dimension: str
    subject: str
    now: Phases
    before: Phases
    tail: int

    @property
    def excess(self) -> float:
        """Requests in the tail beyond the expected one in a hundred."""
        return max(0.0, self.tail - self.now.count / 100)


@dataclass(frozen=True, slots=True)
class SlowReport:
    """Both windows, and the suspects of each dimension, worst first."""

    now: Phases
    before: Phases
    suspects: dict[str, tuple[Suspect, ...]]
    tail: int
    is_cut: bool


_REPORT = """
WITH lines AS (
 (SELECT 1 AS side, tenant_id, model, pool, work_class, replica, input_tokens, cached_tokens,
   output_tokens, status, started_at, first_token_at, ended_at FROM tenants_usage
  WHERE day BETWEEN %(first_day)s AND %(last_day)s AND request_id >= %(since)s::uuid
   AND request_id < %(until)s::uuid AND kind <> 'v' AND pool <> ''
  ORDER BY day DESC, request_id DESC LIMIT %(most)s)
 UNION ALL
 (SELECT 0, tenant_id, model, pool, work_class, replica, input_tokens, cached_tokens,
   output_tokens, status, started_at, first_token_at, ended_at FROM tenants_usage
  WHERE day BETWEEN %(first_day)s AND %(last_day)s AND request_id >= %(old_since)s::uuid
   AND request_id < %(old_until)s::uuid AND kind <> 'v' AND pool <> ''
  ORDER BY day DESC, request_id DESC LIMIT %(most)s)),
timed AS (SELECT *, extract(epoch FROM first_token_at - started_at) * 1000 AS ttft_ms,
  extract(epoch FROM ended_at - first_token_at) * 1000 AS decode_ms FROM lines),
edge AS (SELECT percentile_disc(0.99) WITHIN GROUP (ORDER BY ttft_ms) AS p99_ms FROM timed
  WHERE side = 0)
SELECT t.side, CASE WHEN grouping(tenant_id) = 0 THEN 'tenant'
  WHEN grouping(t.model) = 0 THEN 'model' WHEN grouping(pool) = 0 THEN 'pool'
  WHEN grouping(work_class) = 0 THEN 'class' WHEN grouping(replica) = 0 THEN 'replica'
  ELSE '' END,
 coalesce(tenant_id::text, t.model, pool, work_class, replica, ''), count(*),
 percentile_disc(0.5) WITHIN GROUP (ORDER BY ttft_ms),
 percentile_disc(0.99) WITHIN GROUP (ORDER BY ttft_ms),
 percentile_disc(0.99) WITHIN GROUP (ORDER BY decode_ms),
 sum(cached_tokens)::float / nullif(sum(input_tokens), 0),
 avg(input_tokens)::float, avg(output_tokens)::float,
 count(*) FILTER (WHERE ttft_ms > e.p99_ms)
FROM timed t CROSS JOIN edge e
GROUP BY t.side, GROUPING SETS ((tenant_id), (t.model), (pool), (work_class), (replica), ())
"""


_ENOUGH = """(SELECT count(*) = %s FROM (SELECT 1 FROM tenants_usage
 WHERE day BETWEEN %s AND %s AND request_id >= %s::uuid AND request_id < %s::uuid
  AND kind <> 'v' AND pool <> '' LIMIT %s) AS found)"""


def have_samples(windows: Sequence[tuple[datetime, datetime]]) -> tuple[bool, ...]:
    """Whether `MIN_SAMPLES` requests started in each window [since, until): one query."""
    values: list[int | date | str] = []
    for since, until in windows:
        days = (since.astimezone(UTC).date(), until.astimezone(UTC).date())
        values += [MIN_SAMPLES, *days, _first_id(since), _first_id(until), MIN_SAMPLES]
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT {', '.join([_ENOUGH] * len(windows))}", values)
        row = cursor.fetchone()
    return tuple(bool(one) for one in row or ())


def slow_report(*, until: datetime, length: timedelta, apart: timedelta) -> SlowReport:
    """The `length` before `until` against the same length that ended `apart` earlier: one query."""
    since = until - length
    with connection.cursor() as cursor:
        cursor.execute(
            _REPORT,
            {
                "first_day": (since - apart).astimezone(UTC).date(),
                "last_day": until.astimezone(UTC).date(),
                "since": _first_id(since),
                "until": _first_id(until),
                "old_since": _first_id(since - apart),
                "old_until": _first_id(until - apart),
                "most": MAX_ROWS,
            },
        )
        rows = cursor.fetchall()
    nothing = Phases(0, None, None, None, None, None, None)
    by_side: dict[tuple[int, str, str], tuple[Phases, int]] = {
        (row[0], row[1], row[2]): (_phases(row), int(row[10])) for row in rows
    }
    now, tail = by_side.get((1, "", ""), (nothing, 0))
    before, _ = by_side.get((0, "", ""), (nothing, 0))
    suspects = {dimension: _suspects(dimension, by_side, nothing) for dimension in DIMENSIONS}
    return SlowReport(now, before, suspects, tail, is_cut=MAX_ROWS in (now.count, before.count))


def _suspects(
    dimension: str, by_side: dict[tuple[int, str, str], tuple[Phases, int]], nothing: Phases
) -> tuple[Suspect, ...]:
    found = [
        Suspect(dimension, subject, phases, by_side.get((0, kind, subject), (nothing, 0))[0], tail)
        for (side, kind, subject), (phases, tail) in by_side.items()
        if side == 1 and kind == dimension
    ]
    return tuple(sorted(found, key=lambda one: (-one.excess, one.subject))[:_SUBJECTS])


def _phases(row: tuple[object, ...]) -> Phases:
    def number(at: int) -> float | None:
        value = row[at]
        return None if value is None else float(str(value))

    count = int(str(row[3]))
    return Phases(
        count=count,
        ttft_p50_ms=number(4),
        ttft_p99_ms=number(5) if count >= MIN_SAMPLES else None,
        decode_p99_ms=number(6) if count >= MIN_SAMPLES else None,
        hit_ratio=number(7),
        input_mean_tokens=number(8),
        output_mean_tokens=number(9),
    )


def _first_id(at: datetime) -> str:
    """The least id that a request which started then can have."""
    text = f"{int(at.timestamp() * 1000):012x}"
    return f"{text[:8]}-{text[8:]}-0000-0000-000000000000"
