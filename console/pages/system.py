"""What runs, how old its last word is, and which limits hold."""

from dataclasses import dataclass

from django.http import HttpRequest, HttpResponseBase

from console.accounts.selectors import Permission, require
from console.jobs.selectors import open_counts
from console.pages import attention, parts
from console.web import live_state
from console.web.htmx import render
from console.web.live_state import Seen
from console.web.tables import Column, number
from console.web.views import page
from routing.contracts.process import ProcessStatus

PROCESS_COLUMNS = (
    Column("Process"),
    Column("State"),
    number("Last word", meaning="Age of the last report; writers repeat themselves every 1 to 2 s"),
    number("Up"),
    number("Lag", meaning="How far behind its input the process is, as it says itself"),
    number("Restarts", meaning="Restarts by the supervisor since it started"),
    number("DB pool", "at most", "Connections to PostgreSQL that the process may hold"),
    number("PID"),
    Column("Version"),
    Column("Note"),
)
ENGINE_COLUMNS = (
    Column("Engine"),
    Column("State"),
    number("PID"),
    Column("Address"),
)
GATEWAY_COLUMNS = (
    Column("Gateway"),
    Column("State"),
    Column("Admits by", meaning="shared: the store; degraded: local shares; closed: refuses"),
    Column("Snapshot", meaning="Number that the gateway acknowledged, of the newest published"),
    Column("Policy"),
    number("In flight", "requests"),
    number("Journal", "waiting", "Usage entries not yet acknowledged by the store"),
    number("Last word"),
    number("Up"),
    number("Restarts"),
    Column("Address"),
    Column("Version"),
)


@dataclass(frozen=True, slots=True)
class ProcessRow:
    """One line of the process table. None is unknown."""

    name: str
    state: str
    age_s: float | None
    up_s: float | None
    lag_s: float | None
    restarts: int | None
    pool_max: int | None
    pid: int | None
    version: str
    note: str


@page("GET")
def system(request: HttpRequest) -> HttpResponseBase:
    """The page; htmx asks for its content every few seconds."""
    require(request.user, Permission.VIEW_ALL)
    gateways = live_state.gateways()
    processes = live_state.processes()
    newest = live_state.snapshot_number()
    supervised = parts.supervised()
    restarts = {entry.pid: entry.restarts for entry in supervised or () if entry.pid}
    strips = attention.of_parts(attention.Parts(gateways, processes, newest))
    database = parts.database_facts()
    context = {
        "strips": strips,
        "processes": process_rows(processes or [], supervised or []),
        "engines": parts.engines(),
        "engine_columns": ENGINE_COLUMNS,
        "process_columns": PROCESS_COLUMNS,
        "gateways": [
            {
                "seen": seen,
                "up_s": live_state.age_of_ms(seen.status.started_at_ms),
                "restarts": restarts.get(seen.status.pid),
                "is_acked": newest is None or seen.status.snapshot_number >= newest,
            }
            for seen in gateways or []
        ],
        "gateway_columns": GATEWAY_COLUMNS,
        "newest": newest,
        "database": database,
        "pools_sum": sum(entry.pool_max or 0 for entry in supervised or ()) or None,
        "store": parts.store_facts(),
        "jobs": open_counts() if database else {},
    }
    return render(request, "console/system.html", "content", context)


def process_rows(
    seen: list[Seen[ProcessStatus]], supervised: list[parts.Supervised]
) -> list[ProcessRow]:
    """Processes that report themselves, then those that only the supervisor knows (servers)."""
    by_pid = {entry.pid: entry for entry in supervised if entry.pid}
    rows = []
    for item in seen:
        status = item.status
        entry = by_pid.pop(status.pid, None)
        rows.append(
            ProcessRow(
                name=status.name,
                state="gone" if item.is_gone else "up",
                age_s=item.age_s,
                up_s=live_state.age_of_ms(status.started_at_ms),
                lag_s=status.lag_s,
                restarts=entry.restarts if entry else None,
                pool_max=entry.pool_max if entry else None,
                pid=status.pid,
                version=status.version,
                note=status.note or (entry.reason if entry else ""),
            )
        )
    reporting = {row.name for row in rows}
    rows += [
        ProcessRow(
            name=entry.name,
            state=entry.phase,
            age_s=None,
            up_s=None,
            lag_s=None,
            restarts=entry.restarts,
            pool_max=entry.pool_max,
            pid=entry.pid,
            version="",
            note=entry.reason,
        )
        for entry in supervised
        if entry.name not in reporting
        and not entry.name.startswith("gateway")
        and (entry.pid is None or entry.pid in by_pid)
    ]
    return rows
