"""The fleet: what can serve, what is full, what lies."""

from django import forms
from django.contrib import messages
from django.http import HttpRequest, HttpResponseBase
from django.shortcuts import redirect
from django.utils import timezone

from capacity.fleet.grid import is_fresh, sums_of
from capacity.fleet.selectors import capacity_limits, fleet_page, pool_detail
from capacity.fleet.services import set_capacity_limit
from capacity.fleet.traffic import traffic_of
from console.accounts.person import acting
from console.accounts.selectors import Permission, can, require
from console.errors import DomainError
from console.web.forms import ServiceForm, WholeNumberField
from console.web.htmx import render
from console.web.tables import Column, number, pager
from console.web.views import page
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
        "wanted_words": f"of {detail.pool.desired_replicas} wanted",
    }
    return render(request, "capacity/pool.html", "live", context)


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
    context = {
        "pool": name,
        "whose": whose,
        "form": form,
        "limits": [{"words": _LIMITED[one.dimension], "amount": one.amount} for one in limits],
    }
    return render(request, "capacity/limits.html", "", context, status=422 if form.errors else 200)
