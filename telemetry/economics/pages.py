"""What is the carbon? Energy and grams of a period, with every input shown."""

from django import forms
from django.contrib import messages
from django.http import HttpRequest, HttpResponseBase
from django.shortcuts import redirect
from django.utils import timezone

from console.accounts.person import acting
from console.accounts.selectors import Permission, can, require
from console.errors import DomainError
from console.web.forms import ServiceForm
from console.web.htmx import render, render_form
from console.web.tables import Column, number
from console.web.views import choice, page
from telemetry.economics import selectors, services
from telemetry.economics.answer import carbon_answer
from telemetry.economics.rules import PoolCarbon
from telemetry.stats.carbon import EMBODIED_G, LIFESPAN_S
from tenants.ledger.filters import RANGES

HOUR_S = 3600
GRAMS_PER_KG = 1000
_COLUMNS = (
    Column("Pool"),
    Column("Region"),
    Column("GPU"),
    number("GPU time", "GPU-h", "Loading, serving and draining: idle time too"),
    number("Power", "W a GPU", "Rated unless stated otherwise: an upper bound"),
    number("PUE", "", "Facility energy over IT energy"),
    number("Grid", "g/kWh", "CO2e per kWh"),
    number("Energy", "kWh", "GPU time x power x PUE"),
    number("Operational", "g CO2e", "Energy x grid"),
    number("Embodied", "g CO2e", "Making the GPU, spread over its life"),
    number("For tasks", "%", "Share of the pool's work done for tasks that ended"),
)


class GridForm(ServiceForm):
    """A region's grid."""

    region = forms.CharField(max_length=64, help_text="As the fleet names it.")
    g_co2e_per_kwh = forms.FloatField(label="Grid, g CO2e per kWh", min_value=0, max_value=2000)
    pue = forms.FloatField(label="PUE", min_value=1, max_value=3, initial=1.2)
    source = forms.CharField(max_length=300, help_text="Where both figures come from.")


class PowerForm(ServiceForm):
    """Power of one GPU."""

    hardware = forms.CharField(max_length=64, help_text="As pools name it.")
    power_w = forms.FloatField(label="Power of one GPU, W", min_value=0, max_value=5000)
    source = forms.CharField(max_length=300, help_text="Measured or rated, and by whom.")


@page("GET", query=("range",))
def carbon(request: HttpRequest) -> HttpResponseBase:
    """Grams CO2e of a period by pool, per task and per request."""
    require(request.user, Permission.VIEW_ALL)
    name = choice(request, "range", RANGES, "24h")
    until = timezone.now()
    found = selectors.period(until - RANGES[name][0], until)
    may_act = can(request.user, Permission.ACT)
    total = found.economics.footprint
    requests = sum(one.requests for one in found.tokens)
    tokens = sum(
        one.uncached_tokens + one.cached_tokens + one.output_tokens for one in found.tokens
    )
    context = {
        "found": found,
        "economics": found.economics,
        "answer": carbon_answer(found.economics, may_act=may_act),
        "total": total,
        "total_g": total.total_g if total else None,
        "request_g": total.total_g / requests if total and requests else None,
        "mtok_g": total.total_g * 1e6 / tokens if total and tokens else None,
        "requests": requests,
        "rows": [_row(one, found.inputs) for one in found.economics.pools],
        "columns": _COLUMNS,
        "embodied_kg": EMBODIED_G / GRAMS_PER_KG,
        "lifespan_y": LIFESPAN_S / (365.25 * 24 * HOUR_S),
        "range": name,
        "range_words": RANGES[name][1],
        "ranges": [(key, words) for key, (_, words) in RANGES.items()],
        "may_act": may_act,
    }
    return render(request, "telemetry/carbon.html", "content", context)


@page("GET", "POST")
def state_grid(request: HttpRequest) -> HttpResponseBase:
    """State a region's grid and PUE."""
    return _state(request, GridForm, "region", "Grid of a region")


@page("GET", "POST")
def state_power(request: HttpRequest) -> HttpResponseBase:
    """State the power of a kind of GPU."""
    return _state(request, PowerForm, "hardware", "Power of a GPU")


def _state(
    request: HttpRequest, kind: type[GridForm | PowerForm], subject: str, title: str
) -> HttpResponseBase:
    require(request.user, Permission.ACT)
    if request.method == "POST":
        form = kind(request.POST)
        if form.is_valid():
            actor = acting(request)
            try:
                if isinstance(form, GridForm):
                    services.state_grid(**form.cleaned_data, actor=actor)
                else:
                    services.state_power(**form.cleaned_data, actor=actor)
            except DomainError as error:
                form.add_refusal(error)
            else:
                named = form.cleaned_data[subject]
                messages.success(request, f"Stated for {named}: figures use it now.", "ok")
                return redirect("carbon")
    else:
        form = kind(initial={subject: request.GET.get(subject, "")[:64]})
    context = {"form": form, "title": title}
    return render_form(request, "telemetry/state_input.html", context)


def _row(one: PoolCarbon, known: selectors.Inputs) -> dict[str, object]:
    facts = one.facts
    grid, power = known.grid(facts.region), known.power(facts.hardware)
    return {
        "one": one,
        "gpu_h": facts.gpu_s / HOUR_S,
        "grid": grid[0] if grid else None,
        "pue": grid[1] if grid else None,
        "power": power,
        "task_ratio": one.task_gpu_s / facts.gpu_s if facts.gpu_s else None,
    }
