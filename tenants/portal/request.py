"""One request by its id: what became of it, where it went, what it took. Never its text.

Served requests are rows of the ledger, refused ones shape rows; a request that a replica failed,
or that a hook withheld, has both.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from django.http import HttpRequest, HttpResponseBase
from django.shortcuts import redirect
from django.urls import reverse

from console.accounts.selectors import Permission, can, require, visible_tenant_ids
from console.errors import NotFound
from console.web.htmx import render
from console.web.tables import Column, number
from console.web.views import page
from routing.contracts.hooks import HookHop, HookPoint, read_hop
from routing.policies import selectors as policies
from tenants.directory.access import open_tenant
from tenants.directory.selectors import TenantView, slugs_of
from tenants.ledger.refusals import RefusalLine, refusal, tenant_of_request
from tenants.ledger.selectors import AdjustmentLine, UsageLine, adjustments_page, usage_line
from tenants.portal.refusals import RefusalRow, refusal_rows
from tenants.requests.selectors import askable_limits

MAX_ADJUSTMENTS = 50  # of one request
MILLISECOND = timedelta(milliseconds=1)
_POINTS = (HookPoint.BEFORE, HookPoint.STREAM, HookPoint.AFTER)
_HOOK_COLUMNS = (
    Column("Hook"),
    Column("Asked", meaning="Before routing, on the whole answer, or on parts of a stream"),
    Column("Verdict", meaning="Skipped: not asked, because it keeps failing"),
    number("Took", "ms", "All its calls for this request"),
)
_HELD_COLUMNS = (
    Column("Amount"),
    number("Held", meaning="Reserved on every limit before anything was sent"),
    number("Used", meaning="Settled when the request ended"),
    Column("Share of the hold"),
)
_ADJUSTMENT_COLUMNS = (
    Column("When", "UTC"),
    Column("Reason"),
    Column("Note"),
    number("Spend", "USD"),
)


@dataclass(frozen=True, slots=True)
class Phase:
    """A stretch of the request's time and its share (0..1) of the whole."""

    name: str
    meaning: str
    took_ms: int
    before_ratio: float
    share_ratio: float


@dataclass(frozen=True, slots=True)
class HookRow:
    """What one hook said, and how long it took; `took_ms` is None where it was not asked."""

    hop: HookHop
    took_ms: float | None


@dataclass(frozen=True, slots=True)
class Held:
    """An amount as it was reserved and as it was used; `ratio` is used over held, None of none."""

    name: str
    held: int
    used: int
    ratio: float | None
    is_money: bool = False


@dataclass(frozen=True, slots=True)
class Answering:
    """Which model answered for which: `via` is `alias`, `fallback`, `unknown` or empty (the same).

    `meant` is the model that an alias names.
    """

    meant: str
    via: str


@page("GET", query=("id",))
def find(request: HttpRequest) -> HttpResponseBase:
    """The page of the request with that id; says what to do when there is none."""
    require(request.user, Permission.VIEW_ALL)
    wanted = request.GET.get("id", "").strip()[:60]
    spelled = _spelled(wanted)
    seen = visible_tenant_ids(request.user)
    if spelled and tenant_of_request(tenant_ids=seen, request_id=spelled) is not None:
        return redirect("request", request_id=spelled)
    return render(request, "tenants/find_request.html", "", {"wanted": wanted})


@page("GET")
def request_page(request: HttpRequest, request_id: UUID) -> HttpResponseBase:
    """One request for operators: with pool, replica, gateway, and its hooks' times."""
    require(request.user, Permission.VIEW_ALL)
    spelled = str(request_id)
    seen = visible_tenant_ids(request.user)
    tenant_id = tenant_of_request(tenant_ids=seen, request_id=spelled)
    slug = slugs_of([tenant_id]).get(tenant_id) if tenant_id is not None else None
    if slug is None:
        raise NotFound("No such request.")
    return _page(request, open_tenant(request.user, slug), spelled, area="")


@page("GET")
def own_request_page(request: HttpRequest, slug: str, request_id: UUID) -> HttpResponseBase:
    """One request for its own tenant's people: nothing of the fleet."""
    return _page(request, open_tenant(request.user, slug), str(request_id), area="own_")


def _page(
    request: HttpRequest, tenant: TenantView, request_id: str, *, area: str
) -> HttpResponseBase:
    seen = frozenset({tenant.id})
    line = usage_line(tenant_ids=seen, request_id=request_id)
    refused = refusal(tenant_id=tenant.id, request_id=request_id)
    if line is None and refused is None:
        raise NotFound("No such request.")
    context = {
        "request_id": request_id,
        "tenant": tenant,
        "area": area,
        "line": line,
        "refused": _refused(request, tenant, refused, area) if refused else None,
        "tasks_url": reverse("own_tasks", kwargs={"slug": tenant.slug}) if area else "",
        "zone": tenant.timezone if area else "UTC",
        **(_served(line) if line else {}),
    }
    return render(request, "tenants/request.html", "", context)


def _refused(request: HttpRequest, tenant: TenantView, line: RefusalLine, area: str) -> RefusalRow:
    may_ask = bool(area) and can(request.user, Permission.TENANT_MANAGE_LIMITS, tenant.id)
    limits = askable_limits(tenant.id) if may_ask else []
    return refusal_rows([line], tenant.slug, limits)[0]


def _served(line: UsageLine) -> dict[str, object]:
    first = line.first_token_at
    adjusted = _adjustments(line)
    policy, _, version = line.policy.partition("@")
    return {
        "ttft_ms": None if first is None else round((first - line.started_at) / MILLISECOND),
        "took_ms": round((line.ended_at - line.started_at) / MILLISECOND),
        "phases": phases_of(line.started_at, first, line.ended_at),
        "answering": answering_of(line),
        "hooks": hooks_of(line.hops_us),
        "hook_columns": _HOOK_COLUMNS,
        "held": (
            _held("Input tokens", line.held_input_tokens, line.input_tokens),
            _held("Output tokens", line.held_output_tokens, line.output_tokens),
            _held("Spend, USD", line.held_nanousd, line.spend_nanousd, is_money=True),
        ),
        "held_columns": _HELD_COLUMNS,
        "adjustments": adjusted,
        "adjustment_columns": _ADJUSTMENT_COLUMNS,
        "policy_name": policy,
        "policy_number": int(version) if version.isascii() and version.isdigit() else None,
        "resends": max(line.attempts - 1, 0),
    }


def _adjustments(line: UsageLine) -> tuple[AdjustmentLine, ...]:
    return adjustments_page(
        tenant_ids=frozenset({line.tenant_id}),
        after=None,
        limit=MAX_ADJUSTMENTS,
        request_id=line.request_id,
    ).rows


def _held(name: str, held: int, used: int, *, is_money: bool = False) -> Held:
    return Held(name, held, used, used / held if held else None, is_money)


def phases_of(
    started_at: datetime, first_token_at: datetime | None, ended_at: datetime
) -> tuple[Phase, ...]:
    """The request's time cut at its first output token; one phase where none came."""
    whole = max(ended_at - started_at, MILLISECOND)
    if first_token_at is None:
        words = "Accepted to end; no output token came"
        return (Phase("No output", words, round(whole / MILLISECOND), 0.0, 1.0),)
    wait, rest = first_token_at - started_at, ended_at - first_token_at
    return (
        Phase(
            "To first token",
            "Admission, queue, hooks and prefill",
            round(wait / MILLISECOND),
            0.0,
            wait / whole,
        ),
        Phase(
            "Output",
            "First output token to end",
            round(rest / MILLISECOND),
            wait / whole,
            rest / whole,
        ),
    )


def hooks_of(hops_us: dict[str, int]) -> tuple[HookRow, ...]:
    """What hooks said, by the point at which they were asked, then by name.

    The order of asking within a point is not kept.
    """
    found = ((read_hop(name), took_us) for name, took_us in hops_us.items())
    rows = [HookRow(hop, took_us / 1000 if took_us else None) for hop, took_us in found if hop]
    return tuple(sorted(rows, key=lambda row: (_POINTS.index(row.hop.at), row.hop.hook)))


def answering_of(line: UsageLine) -> Answering:
    """How the model that answered stands for the one asked for, by the policy version that routed.

    One query, and none where both are the same. `unknown` where that version is no longer there.
    """
    if line.model == line.model_asked:
        return Answering(line.model, "")
    name, _, version = line.policy.partition("@")
    try:
        document = policies.version(name, int(version)).document
    except (NotFound, ValueError):
        return Answering(line.model_asked, "unknown")
    models = document.get("models")
    rules = models.items() if isinstance(models, dict) else ()
    aliased = (model for model, rule in rules if line.model_asked in rule.get("aliases", ()))
    meant = next(aliased, line.model_asked)
    return Answering(meant, "alias" if meant == line.model else "fallback")


def _spelled(text: str) -> str:
    try:
        return str(UUID(text))
    except ValueError:
        return ""
