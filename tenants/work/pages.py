"""What did the agents do: tasks of a period, and one task with its calls."""

from datetime import datetime

from django.http import HttpRequest, HttpResponseBase
from django.urls import reverse
from django.utils import timezone

from console.accounts.selectors import Permission, require, visible_tenant_ids
from console.web.htmx import render
from console.web.keyset import DEFAULT_LIMIT
from console.web.tables import Column, number, pager
from console.web.views import choice, page
from routing.contracts.enums import TaskOutcome
from tenants.directory.access import open_tenant
from tenants.ledger.filters import RANGES
from tenants.work import selectors
from tenants.work.answer import work_answer
from tenants.work.caps import standing_of, stopped_tasks, stops_of
from tenants.work.rules import CapRow, cap_rows, cap_words, step_of

OWN_QUERY = ("after", "kind", "outcome", "task")
QUERY = ("tenant", "range", *OWN_QUERY)
OUTCOMES = (*[item.value for item in TaskOutcome], selectors.OPEN)
KINDS_SHOWN = 12
_COLUMNS = (
    Column("Task", meaning="The caller's own name for it"),
    Column("Kind"),
    Column("Outcome", meaning="As the caller reported it, by header or REST"),
    number("Score", "%"),
    number("Calls", meaning="Model calls and uses of named resources"),
    number("Failed"),
    number("Input", "tok"),
    number("Output", "tok"),
    number("Spend", "USD", "All calls with adjustments"),
    number("Took", "", "First call's start to last call's end"),
    Column("Started"),
)
_KIND_COLUMNS = (
    Column("Tenant"),
    Column("Kind"),
    number("Tasks"),
    number("Succeeded"),
    number("Failed"),
    number("Calls a task"),
    number("Tokens a task", "tok"),
    number("Spend", "USD"),
)
_LOOP_COLUMNS = (
    Column("Task"),
    Column("Tenant"),
    Column("Step"),
    Column("Model or resource"),
    number("Calls"),
    number("Spend", "USD"),
)
_STOPPED_COLUMNS = (
    Column("Task"),
    Column("Tenant"),
    Column("Stopped by", meaning="The cap that refused its last call"),
    number("Refused", "calls"),
    Column("Last"),
)
_STOP_COLUMNS = (
    Column("When", "UTC"),
    Column("Step"),
    Column("Model or resource"),
    Column("Refused by"),
    Column("Request"),
)
_STEP_COLUMNS = (
    Column("Started", "UTC"),
    Column("Step"),
    Column("Model or resource"),
    Column("Status"),
    number("TTFT", "ms"),
    number("Took", "ms"),
    number("Input", "tok"),
    number("Cached", "tok"),
    number("Output", "tok"),
    number("Spend", "USD"),
    Column("Replica"),
)


@page("GET", query=QUERY)
def tasks(request: HttpRequest) -> HttpResponseBase:
    """Tasks of all tenants: by kind, loops, and the list; the filter is in the address."""
    require(request.user, Permission.VIEW_ALL)
    slug = request.GET.get("tenant", "")
    tenant = open_tenant(request.user, slug) if slug else None
    seen = frozenset({tenant.id}) if tenant else visible_tenant_ids(request.user)
    name = choice(request, "range", RANGES, "24h")
    until = timezone.now()
    since = until - RANGES[name][0]
    found = selectors.kinds(tenant_ids=seen, since=since, until=until, limit=KINDS_SHOWN)
    loops = selectors.loops(tenant_ids=seen, since=since)
    ended = selectors.outcomes(tenant_ids=seen, since=since, until=until)
    context = {
        **_listed(request, seen),
        "columns": (_COLUMNS[0], Column("Tenant"), *_COLUMNS[1:]),
        "kinds": [_kind(row) for row in found],
        "kind_columns": _KIND_COLUMNS,
        "loops": loops,
        "loop_columns": _LOOP_COLUMNS,
        **_stopped(seen, since),
        "ended": ended,
        "answer": work_answer(ended, found, loops, area="", slug=""),
        "range": name,
        "range_words": RANGES[name][1],
        "ranges": [(key, words) for key, (_, words) in RANGES.items()],
        "tenant_slug": slug,
        "list_url": reverse("tasks"),
        "area": "",
    }
    return render(request, "tenants/tasks.html", "content", context)


@page("GET", query=OWN_QUERY)
def own_tasks(request: HttpRequest, slug: str) -> HttpResponseBase:
    """One tenant's tasks for its own people."""
    tenant = open_tenant(request.user, slug)
    seen = frozenset({tenant.id})
    until = timezone.now()
    since = until - RANGES["24h"][0]
    loops = selectors.loops(tenant_ids=seen, since=since)
    ended = selectors.outcomes(tenant_ids=seen, since=since, until=until)
    context = {
        **_listed(request, seen),
        "columns": _COLUMNS,
        "loops": loops,
        "loop_columns": _LOOP_COLUMNS,
        **_stopped(seen, since),
        "ended": ended,
        "answer": work_answer(ended, (), loops, area="own_", slug=slug),
        "range_words": RANGES["24h"][1],
        "tenant": tenant,
        "list_url": reverse("own_tasks", kwargs={"slug": slug}),
        "area": "own_",
    }
    return render(request, "tenants/tasks.html", "content", context)


@page("GET", query=("after",))
def task(request: HttpRequest, task_id: int) -> HttpResponseBase:
    """One task for operators."""
    require(request.user, Permission.VIEW_ALL)
    found = selectors.task_by_id(tenant_ids=None, task_id=task_id)
    return _task_page(request, found, {"area": ""})


@page("GET", query=("after",))
def own_task(request: HttpRequest, slug: str, task_id: int) -> HttpResponseBase:
    """One task for its own tenant: no replicas."""
    tenant = open_tenant(request.user, slug)
    found = selectors.task_by_id(tenant_ids=frozenset({tenant.id}), task_id=task_id)
    return _task_page(request, found, {"area": "own_", "tenant": tenant})


def _task_page(
    request: HttpRequest, found: selectors.TaskRow, context: dict[str, object]
) -> HttpResponseBase:
    steps = selectors.steps_of(found, after=request.GET.get("after"), limit=DEFAULT_LIMIT)
    whole = found.sums.spend_nanousd or 1
    return render(
        request,
        "tenants/task.html",
        "steps",
        {
            **context,
            "task": found,
            "progress": _progress(steps.rows),
            "parts": [
                {"part": part, "share_ratio": part.sums.spend_nanousd / whole}
                for part in selectors.parts_of(found.id)
            ],
            "loops": selectors.loops(
                tenant_ids=frozenset({found.tenant_id}), since=found.first_at, task_id=found.id
            ),
            "loop_columns": _LOOP_COLUMNS,
            "caps": _caps(found),
            "stops": [
                {"stop": stop, "words": cap_words(stop.limit, stop.scope)}
                for stop in stops_of(found)
            ],
            "stop_columns": _STOP_COLUMNS,
            "children": selectors.children_of(found),
            "steps": [{"step": step, **_times(step)} for step in steps.rows],
            "page": steps,
            "pager": pager(request, steps, "steps"),
            "columns": _STEP_COLUMNS if not context["area"] else _STEP_COLUMNS[:-1],
        },
    )


def _listed(request: HttpRequest, seen: frozenset[int] | None) -> dict[str, object]:
    outcome = choice(request, "outcome", OUTCOMES, "")
    kind = request.GET.get("kind", "").strip()[:64]
    name = request.GET.get("task", "").strip()[:120]
    found = selectors.tasks_page(
        tenant_ids=seen,
        after=request.GET.get("after"),
        limit=DEFAULT_LIMIT,
        kind=kind,
        outcome=outcome,
        task=name,
    )
    return {
        "tasks": found.rows,
        "page": found,
        "pager": pager(request, found, "content"),
        "kind": kind,
        "outcome": outcome,
        "task_name": name,
        "outcomes": OUTCOMES,
        "is_filtered": bool(kind or outcome or name),
    }


def _stopped(seen: frozenset[int] | None, since: datetime) -> dict[str, object]:
    return {
        "stopped": [
            {"row": row, "words": cap_words(row.limit, row.scope)}
            for row in stopped_tasks(tenant_ids=seen, since=since)
        ],
        "stopped_columns": _STOPPED_COLUMNS,
    }


def _caps(found: selectors.TaskRow) -> list[CapRow] | None:
    """Caps of a live task beside what it has used; None where nothing is known of it now."""
    standing = standing_of(found)
    if standing is None or standing.caps is None:
        return None
    return cap_rows(
        standing.caps,
        steps=(standing.steps, standing.held_steps),
        spend_nanousd=(standing.spend_nanousd, standing.held_nanousd),
        lasted_s=standing.lasted_s,
    )


def _kind(row: selectors.KindRow) -> dict[str, object]:
    tokens = row.sums.input_tokens + row.sums.output_tokens
    return {
        "row": row,
        "calls_per_task": row.sums.requests / row.tasks,
        "tokens_per_task": tokens // row.tasks,
    }


def _progress(steps: tuple[selectors.StepRow, ...]) -> tuple[int, int] | None:
    """The furthest `k/n` among the shown calls, for tasks that number their steps."""
    return max((found for step in steps if (found := step_of(step.step))), default=None)


def _times(step: selectors.StepRow) -> dict[str, int | None]:
    first = step.first_token_at
    return {
        "ttft_ms": None if first is None else _millis((first - step.started_at).total_seconds()),
        "took_ms": _millis(step.took.total_seconds()),
    }


def _millis(seconds: float) -> int:
    return round(seconds * 1000)
