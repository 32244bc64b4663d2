"""The capacity lab: guess first, then see what the closed forms say."""

from dataclasses import dataclass
from math import isfinite

from django import forms
from django.http import HttpRequest, HttpResponseBase

from capacity.lab.rules import Answer, Inputs, Question, answer, questions
from capacity.profiles.selectors import fitted_names, named_profile
from capacity.simulation.catalogue import PROFILES
from console.accounts.selectors import Permission, require
from console.errors import NotFound
from console.web import units
from console.web.forms import WholeNumberField
from console.web.htmx import render
from console.web.views import page

PERCENT = 100.0


def _number(label: str, low: float, high: float, step: float, help_text: str = "") -> forms.Field:
    """A number box; its slider is put beside it by script."""
    attrs = {"step": str(step), "data-slider": "", "inputmode": "decimal"}
    return forms.FloatField(
        label=label,
        min_value=low,
        max_value=high,
        help_text=help_text,
        widget=forms.NumberInput(attrs=attrs),
    )


class GuessForm(forms.Form):
    """One number, typed before the answer is shown."""

    guess = forms.FloatField(min_value=0, max_value=1e9)


def _offered() -> list[tuple[str, str]]:
    """Built-in profiles, and pools whose times are fitted."""
    return [(name, name) for name in (*PROFILES, *fitted_names())]


class LabForm(forms.Form):
    """A demand and a fleet. Percentages are 0 to 100 here, ratios below."""

    profile = forms.ChoiceField(label="Model and GPU, or a fitted pool", choices=_offered)
    replicas = WholeNumberField(
        min_value=1,
        max_value=10_000,
        label="Replicas",
        widget=forms.NumberInput(attrs={"data-slider": "200"}),
    )
    domains = WholeNumberField(label="Failure domains", min_value=1, max_value=16)
    rate_rps = _number("Requests per second", 0.01, 100_000, 0.01)
    input_tokens = _number("Input tokens", 1, 1_000_000, 1)
    output_tokens = _number("Output tokens", 1, 100_000, 1)
    cached_pct = _number("Prefix cache hits, % of input", 0, 99, 1)
    growth = _number("Growth, times today's rate", 0.1, 100, 0.1)
    lost_pct = _number("Fleet lost, %", 0, 100, 1)
    retry_pct = _number("Resends, % of requests", 0, 300, 1)
    itl_target_ms = _number("Mean time between tokens, ms at most", 1, 10_000, 1)
    guess = forms.FloatField(
        label="Your guess: replicas needed",
        min_value=0,
        max_value=1e6,
        error_messages={"required": "Type a guess first: then the answer is worth remembering."},
    )

    def inputs(self) -> Inputs:
        """The question. Call after `is_valid`."""
        given = self.cleaned_data
        return Inputs(
            profile=given["profile"],
            replicas=given["replicas"],
            domains=given["domains"],
            rate_rps=given["rate_rps"],
            input_tokens=given["input_tokens"],
            output_tokens=given["output_tokens"],
            cached_ratio=given["cached_pct"] / PERCENT,
            growth=given["growth"],
            lost_ratio=given["lost_pct"] / PERCENT,
            retry_ratio=given["retry_pct"] / PERCENT,
            itl_target_s=given["itl_target_ms"] / 1000,
        )


@dataclass(frozen=True, slots=True)
class Meter:
    """A bar of the answer: share of what there is, in words too."""

    label: str
    ratio: float
    words: str
    note: str


@page("GET", query=("question", "reveal", *LabForm.base_fields))
def lab(request: HttpRequest) -> HttpResponseBase:
    """Three questions, and one's own: nothing is revealed before a guess."""
    require(request.user, Permission.VIEW_ALL)
    known = {question.slug: question for question in questions()}
    slug = request.GET.get("question", "")
    if slug and slug not in known:
        raise NotFound("No such question.")
    context: dict[str, object] = {"questions": known.values(), "chosen": known.get(slug)}
    if slug:
        context |= _asked(request, known[slug])
    else:
        context |= _own(request, next(iter(known.values())).inputs)
    form = context["form"]
    is_wrong = isinstance(form, forms.Form) and form.is_bound and bool(form.errors)
    return render(request, "capacity/lab.html", "answer", context, status=422 if is_wrong else 200)


def _asked(request: HttpRequest, question: Question) -> dict[str, object]:
    form = GuessForm(request.GET if "guess" in request.GET else None)
    form.fields["guess"].label = f"Your guess, {question.unit}"
    if not form.is_valid():
        return {"form": form}
    guess = form.cleaned_data["guess"]
    return {
        "form": form,
        "guess": guess,
        "verdict": question.judged(guess),
        "value": f"{question.value:,.1f}".removesuffix(".0"),
        "try_url": "?" + _query(question.inputs),
    }


def _own(request: HttpRequest, start: Inputs) -> dict[str, object]:
    """Numbers without a guess are a start to change, not a question yet."""
    is_asked = "guess" in request.GET
    initial = {**_initial(start), **request.GET.dict()}
    form = LabForm(request.GET if is_asked else None, initial=initial)
    if not form.is_valid():
        return {"form": form}
    guess = form.cleaned_data["guess"]
    inputs = form.inputs()
    found = answer(inputs, named_profile(inputs.profile))
    return {
        "form": form,
        "guess": guess,
        "found": found,
        "meters": _meters(found),
        "shed_words": units.percent(found.shed_ratio) if found.shed_ratio else "",
        "itl_words": units.seconds(found.itl_s) if isfinite(found.itl_s) else "∞",
        "itl_note": "mean" if isfinite(found.itl_s) else "queues only grow",
        "verdict_of": inputs,
    }


def _meters(found: Answer) -> list[Meter]:
    rows = (
        ("Prefill", found.prefill_ratio, "of the step time that the target leaves"),
        ("Decode", found.decode_ratio, "of the step time that the target leaves"),
        ("KV cache", found.kv_ratio, "of the KV that may be filled (90 %)"),
        ("Prefill, caches cold", found.cold_prefill_ratio, "the same with no prefix hit at all"),
    )
    return [
        Meter(label, ratio, units.percent(ratio) if isfinite(ratio) else "nothing is left", note)
        for label, ratio, note in rows
    ]


def _initial(inputs: Inputs) -> dict[str, object]:
    return {
        "profile": inputs.profile,
        "replicas": inputs.replicas,
        "domains": inputs.domains,
        "rate_rps": round(inputs.rate_rps, 2),
        "input_tokens": round(inputs.input_tokens),
        "output_tokens": round(inputs.output_tokens),
        "cached_pct": round(inputs.cached_ratio * PERCENT),
        "growth": inputs.growth,
        "lost_pct": round(inputs.lost_ratio * PERCENT),
        "retry_pct": round(inputs.retry_ratio * PERCENT),
        "itl_target_ms": round(inputs.itl_target_s * 1000),
    }


def _query(inputs: Inputs) -> str:
    return "&".join(f"{name}={value}" for name, value in _initial(inputs).items())
