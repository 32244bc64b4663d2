"""The audit trail: who did what to which object, when, and whether the chain holds."""

import json
from collections.abc import Iterator

from django.http import HttpRequest, HttpResponseBase

from console.accounts.selectors import Permission, can, require
from console.audit.selectors import AuditFilter, AuditLine, trail, verify_chain
from console.trail.objects import described
from console.web.exports import csv_response
from console.web.htmx import render
from console.web.keyset import DEFAULT_LIMIT, cut, parse_id
from console.web.tables import Column, number, pager
from console.web.views import page

COLUMNS = (
    number("#"),
    Column("When", "UTC"),
    Column("Actor"),
    Column("Act"),
    Column("Object"),
    Column("Reason"),
    Column("Before and after"),
    Column("Request"),
)
CSV_HEADER = (
    "id", "at", "actor", "act", "object_type", "object_id", "tenant_id", "reason", "before",
    "after", "request_id", "hash",
)  # fmt: skip
EXPORT_BATCH = 200
MAX_EXPORTED = 100_000  # one download; older rows follow with a filter


@page("GET", query=("type", "id", "after", "verify"))
def audit(request: HttpRequest) -> HttpResponseBase:
    """The trail, newest first. `?verify=1` reads the whole chain and says whether it holds."""
    require(request.user, Permission.VIEW_AUDIT)
    filters = _filters(request)
    before_id = parse_id(request.GET.get("after"))
    rows = trail(filters, before_id=before_id, limit=DEFAULT_LIMIT + 1)
    lines = cut(rows, DEFAULT_LIMIT, lambda line: line.id)
    may_export = can(request.user, Permission.EXPORT_AUDIT)
    context = {
        "page": lines,
        "pager": pager(request, lines, "rows"),
        "columns": COLUMNS,
        "rows": described(lines.rows),
        "object_type": filters.object_type or "",
        "object_id": filters.object_id or "",
        "is_filtered": filters != AuditFilter(),
        "may_export": may_export,
        "chain": verify_chain() if may_export and request.GET.get("verify") else None,
    }
    return render(request, "console/audit.html", "rows", context)


@page("GET", query=("type", "id", "after", "verify"))
def audit_csv(request: HttpRequest) -> HttpResponseBase:
    """The filtered trail as CSV, at most `MAX_EXPORTED` rows, newest first."""
    require(request.user, Permission.EXPORT_AUDIT)
    return csv_response("headrace-audit.csv", CSV_HEADER, _batches(_filters(request)))


def _filters(request: HttpRequest) -> AuditFilter:
    return AuditFilter(
        object_type=request.GET.get("type", "")[:64] or None,
        object_id=request.GET.get("id", "")[:64] or None,
    )


def _batches(filters: AuditFilter) -> Iterator[list[list[object]]]:
    before_id, left = None, MAX_EXPORTED
    while left > 0:
        rows = trail(filters, before_id=before_id, limit=min(EXPORT_BATCH, left))
        if not rows:
            return
        yield [_cells(row) for row in rows]
        before_id, left = rows[-1].id, left - len(rows)


def _cells(row: AuditLine) -> list[object]:
    return [
        row.id,
        row.at.isoformat(),
        row.actor,
        row.act,
        row.object_type,
        row.object_id,
        row.tenant_id,
        row.reason,
        json.dumps(row.before, ensure_ascii=False),
        json.dumps(row.after, ensure_ascii=False),
        row.request_id,
        row.hash,
    ]
