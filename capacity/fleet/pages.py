"""The fleet: what can serve, what is full, what lies."""

from typing import Any

from django import forms
from django.contrib import messages
from django.db import transaction
from django.http import HttpRequest, HttpResponseBase
from django.shortcuts import redirect
from django.utils import timezone

from capacity.fleet.grid import is_fresh, sums_of
from capacity.fleet.selectors import capacity_limits, fleet_page, pool_detail
from capacity.fleet.services import (
    remove_provider_key,
    set_capabilities,
    set_capacity_limit,
    set_provider_key,
)
from capacity.fleet.traffic import traffic_of
from console.accounts.person import acting
from console.accounts.selectors import Permission, can, require
from console.audit.rules import Actor
from console.errors import DomainError
from console.web.forms import ServiceForm, WholeNumberField
from console.web.htmx import render, render_form
from console.web.tables import Column, number, pager
from console.web.views import page
from routing.contracts.capabilities import OFFERED, ApiStyle, Capability
from routing.contracts.capacity import LIMITED
from routing.contracts.enums import Dimension

POOL_COLUMNS = (
    Column("Pool"),
    Column("Model"),
    Column("Region"),
    Column("Hardware"),
    number("Ready", meaning="Replicas that may take work, of those wanted"),
    Column("KV occupancy now", "%", "One cell a replica, in order of its number"),
    number("Mean KV", "%", "Over the replicas with a fresh report"),
    number("Running", meaning="Requests being computed"),
    number("Waiting", meaning="Requests queued inside the engines"),
    number("Output", "tok/s"),
    number("Report", meaning="Age of the collector's last report"),
)
REPLICA_COLUMNS = (
    Column("Replica"),
    Column("State", meaning="Lifecycle, or health when it is not ok"),
    Column("Since"),
    Column("Cause"),
    number(
        "Share", meaning="Of the pool's requests in the last minute, and what slow start allows"
    ),
    number("KV", "%"),
    number("KV free", "tok"),
    number("Running"),
    number("Waiting"),
    number("Input", "tok/s"),
    number("Output", "tok/s"),
    number("Prefix hit", "%"),
    number("Scraped", meaning="Age of the last good scrape"),
    Column("Engine"),
)


@page("GET", query=("after",))
def fleet(request: HttpRequest) -> HttpResponseBase:
    """Pools by name with one cell a replica; htmx asks again every two seconds."""
    require(request.user, Permission.VIEW_ALL)
    pools = fleet_page(after=request.GET.get("after"))
    rows = [sums_of(pool) for pool in pools.rows]
    context = {
        "page": pools,
        "pager": pager(request, pools, "rows"),
        "columns": POOL_COLUMNS,
        "rows": rows,
        "replicas": sum(len(row.pool.replicas) for row in rows),
        "fresh": sum(row.fresh for row in rows),
        "may_limit": can(request.user, Permission.MANAGE_FLEET),
    }
    return render(request, "capacity/fleet.html", "rows", context)


@page("GET")
def pool(request: HttpRequest, name: str) -> HttpResponseBase:
    """One pool: its replicas with state, cause and live values, and what changed."""
    require(request.user, Permission.VIEW_ALL)
    detail = pool_detail(name)
    row = sums_of(detail.pool)
    traffic = traffic_of(detail.pool.replicas, timezone.now())
    beyond = len(detail.pool.replicas) - detail.pool.ready_replicas
    context = {
        "detail": detail,
        # With as many ready as wanted: those that a rollout starts, or that drain.
        "not_ready": f"{beyond} more not ready" if beyond else "",
        "row": row,
        "fresh_words": f"over {row.fresh} of {len(detail.pool.replicas)} replicas",
        "replicas": [
            {
                "replica": replica,
                "is_stale": not is_fresh(replica),
                "traffic": traffic[replica.name],
            }
            for replica in detail.pool.replicas
        ],
        "columns": REPLICA_COLUMNS,
        "may_limit": can(request.user, Permission.MANAGE_FLEET),
        "may_roll": can(request.user, Permission.ROLLOUT_RUN),
        "able": [_CAPABILITY_WORDS[Capability(one)] for one in detail.capabilities],
        "style_words": _STYLE_WORDS[detail.style],
        "is_hosted": detail.style is not ApiStyle.ENGINE,
        "wanted_words": f"of {detail.pool.desired_replicas} wanted",
    }
    return render(request, "capacity/pool.html", "live", context)


_CAPABILITY_WORDS = {
    Capability.CHAT: "Chat completions",
    Capability.COMPLETIONS: "Completions",
    Capability.RESPONSES: "Responses",
    Capability.MESSAGES: "Messages (Anthropic)",
    Capability.COUNT_TOKENS: "Count of tokens (Anthropic)",
    Capability.EMBEDDINGS: "Embeddings",
    Capability.RERANK: "Rerank",
    Capability.SCORE: "Score",
    Capability.TOKENIZE: "Tokenize",
    Capability.TOOLS: "Tools that the caller runs",
    Capability.STRUCTURED_OUTPUT: "Structured output",
    Capability.IMAGE_INPUT: "Pictures as input",
    Capability.AUDIO_INPUT: "Audio as input",
    Capability.ENGINE_OPTIONS: "Options that only vLLM knows",
    Capability.CANCELLATION: "Stops work when its caller hangs up",
}
_STYLE_WORDS = {
    ApiStyle.ENGINE: "engines of ours",
    ApiStyle.OPENAI: "a hosted provider with OpenAI's API",
    ApiStyle.ANTHROPIC: "a hosted provider with Anthropic's API",
}


class ProviderForm(ServiceForm):
    """What a pool can do; of a hosted one, its key."""

    capabilities = forms.MultipleChoiceField(
        label="Can do",
        choices=[(one.value, _CAPABILITY_WORDS[one]) for one in OFFERED],
        widget=forms.CheckboxSelectMultiple,
        required=False,
        help_text="What no target of a model can do is refused by name. None: as its API usually.",
    )
    api_key = forms.CharField(
        label="API key of the provider",
        max_length=400,
        required=False,
        widget=forms.PasswordInput(attrs={"autocomplete": "off", "spellcheck": "false"}),
        help_text="Kept encrypted and never shown again. Empty keeps the present one.",
    )
    forget = forms.BooleanField(label="Forget the present key", required=False)
    field_order = ("api_key", "forget", "capabilities")

    def __init__(self, *args: Any, is_hosted: bool, has_key: bool, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if not is_hosted:
            del self.fields["api_key"]
        if not has_key:
            del self.fields["forget"]


@page("GET", "POST")
def pool_provider(request: HttpRequest, name: str) -> HttpResponseBase:
    """What a pool can do, and its provider's key."""
    require(request.user, Permission.MANAGE_FLEET)
    detail = pool_detail(name)
    is_hosted = detail.style is not ApiStyle.ENGINE
    form = ProviderForm(
        request.POST or None,
        initial={"capabilities": detail.capabilities},
        is_hosted=is_hosted,
        has_key=bool(detail.key_hint),
    )
    if request.method == "POST" and form.is_valid():
        try:
            _save_provider(name, form.cleaned_data, detail.capabilities, acting(request))
        except DomainError as error:
            form.add_refusal(error)
        else:
            text = f"Saved for pool {name}. Gateways follow within a second."
            messages.success(request, text, "ok")
            return redirect("pool", name=name)
    context = {
        "detail": detail,
        "form": form,
        "is_hosted": is_hosted,
        "style_words": _STYLE_WORDS[detail.style],
    }
    return render_form(request, "capacity/provider.html", context)


def _save_provider(
    name: str, asked: dict[str, Any], present: tuple[str, ...], actor: Actor
) -> None:
    """All of what the form says, or nothing."""
    with transaction.atomic():
        if tuple(asked["capabilities"]) != present:
            set_capabilities(pool=name, capabilities=asked["capabilities"], actor=actor)
        if asked.get("api_key"):
            set_provider_key(pool=name, api_key=asked["api_key"], actor=actor)
        elif asked.get("forget"):
            remove_provider_key(pool=name, actor=actor)


_LIMITED = {
    Dimension.REQUESTS: "requests per minute",
    Dimension.INPUT_TOKENS: "input tokens per minute",
    Dimension.OUTPUT_TOKENS: "output tokens per minute",
    Dimension.CONCURRENCY: "requests at once",
    Dimension.KV_TOKENS: "KV tokens at once",
}


class CapacityLimitForm(ServiceForm):
    """One bound over all tenants; empty removes it."""

    dimension = forms.ChoiceField(
        label="Of", choices=[(one.value, _LIMITED[one]) for one in LIMITED]
    )
    amount = WholeNumberField(
        label="At most",
        required=False,
        min_value=0,
        help_text="0 takes nothing; empty removes the limit.",
    )
    confirm = forms.BooleanField(label="Yes, stop every tenant", required=False)
    is_doubted = False

    def add_refusal(self, error: DomainError) -> None:
        """A limit that stops everybody is the one refusal that a tick overrules."""
        if error.code == "limit_needs_confirmation":
            self.is_doubted = True
            error.hint = "Tick below if that is meant."
        super().add_refusal(error)


@page("GET", "POST")
def pool_limits(request: HttpRequest, name: str) -> HttpResponseBase:
    """Limits of one pool."""
    return _limits_page(request, name)


@page("GET", "POST")
def fleet_limits(request: HttpRequest) -> HttpResponseBase:
    """Limits of the whole fleet."""
    return _limits_page(request, None)


def _limits_page(request: HttpRequest, name: str | None) -> HttpResponseBase:
    require(request.user, Permission.MANAGE_FLEET)
    limits = capacity_limits(name)
    form = CapacityLimitForm(request.POST or None)
    if name is not None:
        form.fields["confirm"].label = f"Yes, let {name} take nothing"
    whose = "the fleet" if name is None else f"pool {name}"
    if request.method == "POST" and form.is_valid():
        try:
            set_capacity_limit(pool=name, actor=acting(request), **form.cleaned_data)
        except DomainError as error:
            form.add_refusal(error)
        else:
            act = "removed" if form.cleaned_data["amount"] is None else "set"
            text = f"Limit {act} for {whose}. Gateways apply it within a second."
            messages.success(request, text, "ok")
            return redirect(request.path)
    if not form.is_doubted:  # a box that is always there is ticked without reading
        del form.fields["confirm"]
    context = {
        "pool": name,
        "whose": whose,
        "form": form,
        "limits": [{"words": _LIMITED[one.dimension], "amount": one.amount} for one in limits],
    }
    return render_form(request, "capacity/limits.html", context)
