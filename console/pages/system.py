"""What runs, what is degraded with which bound, how old each last word is, which limits hold."""

from dataclasses import dataclass
from datetime import timedelta

from django.conf import settings
from django.http import HttpRequest, HttpResponseBase
from django.utils import timezone

from capacity.fleet.selectors import restarts
from console.accounts.selectors import Permission, require
from console.conditions.board import SERVER_NAMES
from console.conditions.report import UP, engine_state, state_of
from console.conditions.rules.facts import Answer, EngineFacts, Facts, ProcessFacts
from console.jobs.selectors import open_counts
from console.pages import parts
from console.pages.conditions import report, strips_here
from console.web.htmx import render
from console.web.tables import Column, number
from console.web.views import page

RESTARTS_OF = timedelta(days=1)  # of engines: the fleet keeps every change, this page the last day
MAX_ENGINES = 50  # lines; those that are not well come first, the fleet page has all

PROCESS_COLUMNS = (
    Column("Name"),
    Column("Kind"),
    Column("State"),
    number("Last word", meaning="Age of the last report; writers repeat themselves every 1 to 2 s"),
    number("Up"),
    number("Lag", meaning="How far behind its input the process is, as it says itself"),
    number("Restarts", meaning="Since the supervisor started; of an engine, in the last 24 h"),
    Column("Last reason", meaning="Why it ended or failed last"),
    number("PID"),
    number("Port"),
    Column("Version"),
    Column("Note"),
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
    """One line of the process table. None is unknown. `id` keeps the line's place on refresh."""

    id: str
    name: str
    kind: str
    state: str
    age_s: float | None = None
    up_s: float | None = None
    lag_s: float | None = None
    restarts: int | None = None
    reason: str = ""
    pid: int | None = None
    port: int | None = None
    version: str = ""
    note: str = ""

    @property
    def is_off(self) -> bool:
        """Whether it does not run."""
        return self.state in ("gone", "dead", "down", "stopped")


@page("GET")
def system(request: HttpRequest) -> HttpResponseBase:
    """The page; htmx asks for its content every few seconds."""
    require(request.user, Permission.VIEW_ALL)
    seen = report()
    facts = seen.facts
    database = parts.database_facts()
    engines = engine_rows(facts)
    context = {
        "strips": strips_here(seen),
        "processes": process_rows(facts) + engines,
        "engines_left_out": len(facts.engines) - len(engines),
        "process_columns": PROCESS_COLUMNS,
        "gateways": [
            {
                "seen": gateway,
                "is_gone": gateway.age_s > parts.GONE_AFTER_S,
                "is_acked": facts.store.snapshot_number is None
                or gateway.snapshot_number >= facts.store.snapshot_number,
            }
            for gateway in facts.gateways
        ],
        "gateway_columns": GATEWAY_COLUMNS,
        "newest": facts.store.snapshot_number,
        "database": database,
        "pools_sum": sum(process.pool_max or 0 for process in facts.processes) or None,
        "store": facts.store,
        "is_store_up": facts.store.answer is Answer.OK,
        "disks": facts.disks,
        "jobs": open_counts() if database else {},
        "state_dir": settings.STATE_DIR,
    }
    return render(request, "console/system.html", "content", context)


def process_rows(facts: Facts) -> list[ProcessRow]:
    """Processes in the supervisor's order, then servers that somebody else runs."""
    rows = [_process(process, facts) for process in facts.processes]
    supervised = {process.name for process in facts.processes}
    if "valkey" not in supervised:
        is_up = facts.store.answer is Answer.OK
        state = UP if is_up else facts.store.answer.value
        rows.append(
            ProcessRow(
                "store", "store", "server", state, version=facts.store.version, note="external",
                reason=facts.store.error,
            )
        )  # fmt: skip
    database = facts.database
    if "postgres" not in supervised and database is not None:
        state = UP if database.answer is Answer.OK else database.answer.value
        rows.append(
            ProcessRow(
                "postgres", "postgres", "server", state, note="external",
                version=database.version.partition(" ")[0], reason=database.error,
            )
        )  # fmt: skip
    return rows


def _process(process: ProcessFacts, facts: Facts) -> ProcessRow:
    state = state_of(process, facts)
    notes = [process.trouble or process.not_ready, process.note]
    if process.next_start_s is not None:
        notes.insert(0, f"starts again in {process.next_start_s:.0f} s")
    if process.pool_max and process.name not in SERVER_NAMES and not _is_gateway(process):
        notes.append(f"DB pool at most {process.pool_max}")
    return ProcessRow(
        id=f"{process.name}-{process.pid or ''}",
        name=process.name,
        kind="server" if process.name in SERVER_NAMES else "process",
        state=state,
        age_s=process.heartbeat_age_s,
        up_s=process.up_s,
        lag_s=process.lag_s,
        restarts=process.restarts if process.phase else None,
        reason=process.last_reason,
        pid=process.pid,
        port=process.port,
        version=process.version or _gateway_version(process, facts),
        note="; ".join(note for note in notes if note),
    )


def _is_gateway(process: ProcessFacts) -> bool:
    return process.name.startswith("gateway")


def _gateway_version(process: ProcessFacts, facts: Facts) -> str:
    found = (gateway.version for gateway in facts.gateways if gateway.pid == process.pid)
    return next(found, "") if _is_gateway(process) else ""


def engine_rows(facts: Facts) -> list[ProcessRow]:
    """Engines that are not well first; at most `MAX_ENGINES`."""
    ordered = sorted(facts.engines, key=lambda engine: engine_state(engine) == "running")
    shown = ordered[:MAX_ENGINES]
    since = timezone.now() - RESTARTS_OF
    found = restarts([engine.name for engine in shown], since) if shown else {}
    return [_engine(engine, *found.get(engine.name, (0, ""))) for engine in shown]


def _engine(engine: EngineFacts, count: int, why: str) -> ProcessRow:
    where = [part for part in (engine.model, engine.pool and f"pool {engine.pool}") if part]
    return ProcessRow(
        id=f"engine-{engine.name}",
        name=engine.name,
        kind="engine",
        state=engine_state(engine),
        restarts=count,
        reason=engine.cause or why,
        pid=engine.pid,
        port=engine.port,
        version=engine.version,
        note=", ".join(where),
    )
