"""The end of what is kept, and the partitions of days to come.

Rows go with their day's partition; rollups, adjustments and audit events stay. A day of usage goes
only when it is settled: its rollups are the sum of its rows, and no entry that may be one of its
rows lies aside. A late entry of a dropped day is parked by the writer; its partition never returns.
"""

import logging
from collections.abc import Iterator
from datetime import date, datetime, timedelta
from typing import cast

from django.conf import settings
from django.db import connection, transaction
from django.utils import timezone
from psycopg import sql

from tenants.ledger import tables
from tenants.ledger.cursors import Cursor
from tenants.ledger.rules.health import entry_order
from tenants.ledger.rules.lines import instant
from tenants.ledger.rules.shapes import DAYS_KEPT
from tenants.models import DamagedEntry, UsageRollup, WindowUsage, WorkTask

logger = logging.getLogger(__name__)

WINDOWS_KEPT = timedelta(days=3)  # counters end 26 h after their window; a day and more to spare
MINUTES_KEPT = timedelta(days=35)  # the longest window, a month, may start at any minute (UTC)
DAMAGE_KEPT = timedelta(days=90)
MAX_DROPPED = 32  # partitions in one run: each takes the table's lock for a moment
DELETE_ROWS = 5_000  # in one statement, so that no lock is held for long
MAX_DELETES = 200  # statements in one run; the next run goes on
DAYS_AHEAD = 7  # a job that fails for a week still finds its partitions
USAGE, SHAPES = "tenants_usage", "tenants_shape"
SHAPE_STREAM = "shapes"  # among parked entries; all others are of usage
ENTRY_AFTER_DAYS = 2  # an entry comes at its request's end, and clocks differ

_UNSETTLED = """
SELECT count(*) FROM (SELECT tenant_id FROM (
 SELECT tenant_id, (kind <> 'v')::int AS requests, input_tokens, output_tokens, spend_nanousd
  FROM tenants_usage WHERE day = %(day)s
 UNION ALL SELECT tenant_id, requests, input_tokens, output_tokens, spend_nanousd
  FROM tenants_usageadjustment WHERE day = %(day)s
 UNION ALL SELECT tenant_id, -requests, -input_tokens, -output_tokens, -spend_nanousd
  FROM tenants_usagerollup WHERE grain = 'd' AND start_at = %(start)s
) AS lines GROUP BY tenant_id HAVING sum(requests) <> 0 OR sum(input_tokens) <> 0
 OR sum(output_tokens) <> 0 OR sum(spend_nanousd) <> 0) AS tenants
"""


def drop_old() -> dict[str, int]:
    """Drop what is kept no longer; returns how much of each kind went. Safe to repeat.

    Whole partitions of usage and shapes; rows of ended windows, of minute rollups, of tasks and of
    damaged entries. `usage_kept` counts days past their time that could not go: the log says why.
    """
    now = timezone.now()
    dropped, kept = _drop_usage((now - timedelta(days=settings.USAGE_DAYS_KEPT)).date())
    return {
        "usage_partitions": dropped,
        "usage_kept": kept,
        "shape_partitions": _drop_shapes((now - timedelta(days=DAYS_KEPT)).date()),
        "windows": _delete_windows(now - WINDOWS_KEPT),
        "minutes": _delete_minutes(now - MINUTES_KEPT),
        "tasks": _delete_tasks(now - timedelta(days=settings.USAGE_DAYS_KEPT)),
        "damaged": DamagedEntry.objects.filter(created_at__lt=now - DAMAGE_KEPT).delete()[0],
    }


def make_partitions() -> None:
    """Partitions of today and the days ahead, so that no batch waits for a table's lock."""
    today = timezone.now().date()
    days = [today + timedelta(days=ahead) for ahead in range(DAYS_AHEAD + 1)]
    for table in (USAGE, SHAPES):
        with transaction.atomic(), connection.cursor() as cursor:
            tables.ensure_partitions(cast(Cursor, cursor), table, days)


def overdue_days() -> list[date]:
    """Days of usage that should have been dropped by yesterday's run, oldest first."""
    before = (timezone.now() - timedelta(days=settings.USAGE_DAYS_KEPT + 1)).date()
    return list(_days_before(USAGE, before))


def _days_before(table: str, before: date) -> Iterator[date]:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT right(c.relname, 8) FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid"
            " WHERE i.inhparent = %s::regclass AND right(c.relname, 8) < to_char(%s::date,"
            " 'YYYYMMDD') ORDER BY c.relname",
            [table, before],
        )
        found = cursor.fetchall()
    for (name,) in found:
        yield date(int(name[:4]), int(name[4:6]), int(name[6:]))


def _drop_usage(before: date) -> tuple[int, int]:
    dropped = kept = 0
    for day in list(_days_before(USAGE, before))[:MAX_DROPPED]:
        if why := _drop_settled(day):
            logger.warning("usage of %s is past its time and stays: %s", day, why)
            kept += 1
        else:
            dropped += 1
    return dropped, kept


def _drop_settled(day: date) -> str:
    """Drop a day, or say why not.

    Nothing is locked for the look: the writer gives such a day no rows any more, and an adjustment
    made meanwhile goes into its own table and into the rollups.
    """
    child = sql.Identifier(f"{USAGE}_{day:%Y%m%d}")
    start = instant(0).replace(year=day.year, month=day.month, day=day.day)
    with connection.cursor() as cursor:
        cursor.execute(_UNSETTLED, {"day": day, "start": start})
        row = cursor.fetchone()
        if row and row[0]:
            return f"rows and rollups of {row[0]} tenants differ; reconcile them"
        if entry := _parked_for(start):
            return f"parked entry {entry} may be one of its rows; book or delete it first"
        cursor.execute(sql.SQL("DROP TABLE {}").format(child).as_string())
    return ""


def _parked_for(start: datetime) -> str:
    """A parked usage entry that came on that day or soon after."""
    until = start + timedelta(days=1 + ENTRY_AFTER_DAYS)
    for row in DamagedEntry.objects.exclude(stream=SHAPE_STREAM).only("stream", "entry_id"):
        at = instant(entry_order(row.entry_id)[0])
        if start <= at < until:
            return f"{row.stream} {row.entry_id}"
    return ""


def _drop_shapes(before: date) -> int:
    days = list(_days_before(SHAPES, before))[:MAX_DROPPED]
    with connection.cursor() as cursor:
        for day in days:
            child = sql.Identifier(f"{SHAPES}_{day:%Y%m%d}")
            cursor.execute(sql.SQL("DROP TABLE {}").format(child).as_string())
    return len(days)


def _delete_windows(before: datetime) -> int:
    deleted = 0
    for _ in range(MAX_DELETES):
        ids = WindowUsage.objects.filter(window_end_at__lt=before).values("pk")[:DELETE_ROWS]
        gone = WindowUsage.objects.filter(pk__in=ids).delete()[0]
        deleted += gone
        if gone < DELETE_ROWS:
            break
    return deleted


def _delete_tasks(before: datetime) -> int:
    """Tasks whose last request is past its time; their sums by model go with them."""
    deleted = 0
    for _ in range(MAX_DELETES):
        old = WorkTask.objects.filter(last_at__lt=before)
        _, gone = WorkTask.objects.filter(pk__in=old.values("pk")[:DELETE_ROWS]).delete()
        deleted += gone.get(WorkTask._meta.label, 0)
        if gone.get(WorkTask._meta.label, 0) < DELETE_ROWS:
            break
    return deleted


def _delete_minutes(before: datetime) -> int:
    deleted = 0
    for _ in range(MAX_DELETES):
        old = UsageRollup.objects.filter(grain="m", start_at__lt=before)
        gone = UsageRollup.objects.filter(pk__in=old.values("pk")[:DELETE_ROWS]).delete()[0]
        deleted += gone
        if gone < DELETE_ROWS:
            break
    return deleted
