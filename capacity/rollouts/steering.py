"""Steering a rollout: start one for a pool, pause, resume, abort it, or roll it back."""

import json
from collections.abc import Callable
from typing import Any

from django import forms
from django.contrib import messages
from django.http import HttpRequest, HttpResponseBase
from django.shortcuts import redirect

from capacity.models import OnTooFew
from capacity.rollouts import services
from capacity.rollouts.fitting import acts_of
from capacity.rollouts.rules.judging import (
    DEFAULT_ERROR_EXCESS_RATIO,
    DEFAULT_LIMIT_S,
    DEFAULT_REQUESTS,
    DEFAULT_TTFT_RATIO,
    MOST_REQUESTS,
    MOST_TTFT_RATIO,
)
from capacity.rollouts.rules.lanes import (
    DEFAULT_DRAIN_LIMIT_S,
    DEFAULT_LOAD_LIMIT_S,
    DEFAULT_WARM_S,
    LEAST_LOAD_LIMIT_S,
    MOST_S,
)
from capacity.rollouts.selectors import (
    PoolToRoll,
    RolloutDetail,
    pool_to_roll,
    rollout_detail,
)
from capacity.rollouts.services.acts import Plan
from console.accounts.person import acting
from console.accounts.selectors import Permission, require
from console.characters import first_refused, said_of
from console.errors import DomainError, NotFound
from console.web.forms import ServiceForm, TypedConfirmation, WholeNumberField
from console.web.htmx import render_form
from console.web.tables import Strip
from console.web.units import parse_whole
from console.web.views import page

MAX_SPEC_CHARS = 20_000


class StartForm(TypedConfirmation):
    """What to roll out, and the pool's name typed."""

    spec = forms.CharField(
        label="Settings (JSON)",
        max_length=MAX_SPEC_CHARS,
        widget=forms.Textarea(attrs={"class": "middle", "spellcheck": "false"}),
        help_text="All of them, as the pool's driver takes them: what is left out has its default. "
        "Unchanged: every replica is restarted with the same settings.",
    )
    artifact = forms.ChoiceField(
        label="Artifact", required=False, help_text="A version of the model's weights to load."
    )
    engine_version = forms.CharField(
        label="Engine version",
        required=False,
        max_length=64,
        help_text="New engines must say this of themselves, such as 0.32; empty takes any.",
    )
    load_limit_s = WholeNumberField(
        label="Load limit, s",
        min_value=LEAST_LOAD_LIMIT_S,
        max_value=MOST_S,
        initial=DEFAULT_LOAD_LIMIT_S,
    )
    warm_s = WholeNumberField(
        label="Slow start, s",
        min_value=0,
        max_value=MOST_S,
        initial=DEFAULT_WARM_S,
        help_text="Gateways ramp a new replica up over 60 s.",
    )
    drain_limit_s = WholeNumberField(
        label="Drain limit, s",
        min_value=0,
        max_value=MOST_S,
        initial=DEFAULT_DRAIN_LIMIT_S,
        help_text="Calls still open after it are cut.",
    )
    judge_requests = WholeNumberField(
        label="Judged by, requests",
        min_value=0,
        max_value=MOST_REQUESTS,
        initial=DEFAULT_REQUESTS,
        help_text="Needed of the new replica, and of the old ones over the same time. 0 judges "
        "nothing.",
    )
    judge_limit_s = WholeNumberField(
        label="Wait for them, s",
        min_value=0,
        max_value=MOST_S,
        initial=DEFAULT_LIMIT_S,
        help_text="At most so long after the slow start.",
    )
    on_too_few = forms.ChoiceField(
        label="With too few", choices=OnTooFew.choices, initial=OnTooFew.GO_ON.value
    )
    most_ttft_ratio = forms.FloatField(
        label="TTFT at most, times",
        min_value=1,
        max_value=MOST_TTFT_RATIO,
        initial=DEFAULT_TTFT_RATIO,
        help_text="Of that of the old ones; clearly above, it turns back.",
    )
    most_error_excess_ratio = forms.FloatField(
        label="Errors at most, ratio above",
        min_value=0,
        max_value=1,
        initial=DEFAULT_ERROR_EXCESS_RATIO,
        help_text="0.02: two points above the old ones' share; clearly above, it turns back.",
    )
    pause_after = forms.CharField(
        label="Pause after replicas",
        required=False,
        max_length=100,
        help_text="Such as 1 or 1, 3: after so many it waits for a person.",
    )
    reason = forms.CharField(max_length=400, help_text="Kept in the audit trail.")
    idempotency_key = forms.CharField(widget=forms.HiddenInput, max_length=200)

    def __init__(self, *args: object, pool: PoolToRoll, **kwargs: Any) -> None:
        super().__init__(*args, expected=pool.name, label=f"Type {pool.name} to start", **kwargs)
        field = self.fields["artifact"]
        assert isinstance(field, forms.ChoiceField)  # noqa: S101 - declared above
        field.choices = [("", "as in the settings"), *((name, name) for name in pool.artifacts)]
        self.order_fields([*(name for name in self.fields if name != "confirm"), "confirm"])

    def clean_spec(self) -> dict[str, Any]:
        """The settings as an object."""
        text = str(self.cleaned_data["spec"])
        try:
            found = json.loads(text, parse_constant=_no_constant)
        except (ValueError, RecursionError) as error:
            raise forms.ValidationError(f"This is not JSON: {error}") from error
        if not isinstance(found, dict):
            raise forms.ValidationError('Settings are one object: {"name": value, ...}.')
        if refused := first_refused(found):
            raise forms.ValidationError(f"{refused[0] or 'A name in it'}: {said_of(refused[1])}")
        return found

    def clean_pause_after(self) -> tuple[int, ...]:
        """The numbers, separated by commas or spaces."""
        parts = str(self.cleaned_data["pause_after"]).replace(",", " ").split()
        try:
            return tuple(parse_whole(part) for part in parts)
        except ValueError:
            raise forms.ValidationError("Write whole numbers, such as 1, 3.") from None


class ReasonForm(ServiceForm):
    """Why; kept in the audit trail."""

    reason = forms.CharField(max_length=400, required=False)


class AbortForm(TypedConfirmation):
    """Stopping half way asks for the pool's name and a reason."""

    reason = forms.CharField(max_length=400)


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")


@page("GET", "POST")
def start_rollout(request: HttpRequest, name: str) -> HttpResponseBase:
    """Roll a pool out to other settings, weights or engine."""
    require(request.user, Permission.ROLLOUT_RUN)
    pool = pool_to_roll(name)
    form = StartForm(request.POST or None, pool=pool, initial=_initial(request, pool))
    if request.method == "POST" and form.is_valid():
        given = dict(form.cleaned_data)
        given.pop("confirm")
        key = given.pop("idempotency_key")
        try:
            rollout_id = services.start(
                pool=name, plan=Plan(**given), actor=acting(request), idempotency_key=key
            )
        except DomainError as error:
            form.add_refusal(error)
        else:
            is_same = given["spec"] == pool.spec and not given["artifact"]
            what = " It restarts every replica with the same settings." if is_same else ""
            text = f"Rollout {rollout_id} of pool {name} has started.{what}"
            messages.success(request, text, "ok")
            return redirect("rollout", rollout_id=rollout_id)
    context = {
        "pool": pool,
        "form": form,
        "ready_note": f"of {pool.desired_replicas} desired",
        "strips": _start_strips(pool),
    }
    return render_form(request, "capacity/start_rollout.html", context)


_DO: dict[str, Callable[..., None]] = {
    "pause": services.pause,
    "resume": services.resume,
    "abort": services.abort,
    "roll-back": services.roll_back,
}
_EFFECTS = {
    "pause": "No further step is taken until it is resumed. What loads or drains goes on.",
    "resume": "It goes on where it stood; the time that it stood still counts for no deadline. A "
    "new replica that waits because too few requests reached it passes unjudged.",
    "abort": "No further replica is touched, and a new one that does not serve yet is removed. "
    "Replicas that were replaced stay as they are; rolling back stays possible.",
    "roll-back": "Every replica is brought back to the revision before, one by one, with the same "
    "checks as forward.",
}


@page("GET", "POST")
def rollout_act(request: HttpRequest, rollout_id: int, act: str) -> HttpResponseBase:
    """Pause, resume, abort or roll back: what it does, then the button."""
    require(request.user, Permission.ROLLOUT_RUN)
    if act not in _DO:
        raise NotFound("No such act.")
    found = rollout_detail(rollout_id)
    pool = found.row.pool
    form: ServiceForm
    if act == "abort":
        form = AbortForm(request.POST or None, expected=pool, label=f"Type {pool} to abort")
    else:
        form = ReasonForm(request.POST or None)
    if request.method == "POST" and form.is_valid():
        try:
            _DO[act](
                rollout_id=rollout_id, actor=acting(request), reason=form.cleaned_data["reason"]
            )
        except DomainError as error:
            form.add_refusal(error)
        else:
            return redirect("rollout", rollout_id=rollout_id)
    context = {
        "detail": found,
        "row": found.row,
        "form": form,
        "act": act,
        "label": act.replace("-", " ").capitalize(),
        "effect": _EFFECTS[act],
        "ready_note": f"of {found.desired_replicas} desired",
        "is_danger": act in ("abort", "roll-back"),
        "strips": _act_strips(found, act),
    }
    return render_form(request, "capacity/rollout_act.html", context)


def _act_strips(found: RolloutDetail, act: str) -> list[Strip]:
    """Why the act does not fit, so that nobody types a name in vain."""
    row = found.row
    fitting = {one.name: one.why_not for one in acts_of(found, may_run=True)}
    if act in fitting and not fitting[act]:
        return []
    why = fitting.get(act) or f"Rollout {row.id} is {row.state.replace('_', ' ')}"
    return [
        Strip(
            "warn",
            "not now",
            f"{why}.",
            url=f"/rollouts/{row.id}/",
            action="Open it",
            next_step="Its page offers what fits its state.",
        )
    ]


def _initial(request: HttpRequest, pool: PoolToRoll) -> dict[str, object]:
    return {
        "spec": json.dumps(pool.spec, indent=2, sort_keys=True),
        "idempotency_key": str(getattr(request, "request_id", "")),
    }


def _start_strips(pool: PoolToRoll) -> list[Strip]:
    if not pool.is_rolled_here:
        return [
            Strip(
                "warn",
                "not here",
                f"Pool {pool.name} has the driver {pool.driver}: its engines run elsewhere.",
                next_step="Roll them out where they run; the pool follows their addresses.",
            )
        ]
    if pool.running_id:
        return [
            Strip(
                "warn",
                "taken",
                f"Rollout {pool.running_id} has this pool.",
                url=f"/rollouts/{pool.running_id}/",
                action="Open it",
                next_step="Wait until it ends, or abort it.",
            )
        ]
    return []
