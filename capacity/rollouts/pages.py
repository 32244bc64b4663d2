"""Rollouts: is it safe to go on? Timeline, progress, and what may be done next."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from django import forms
from django.contrib import messages
from django.http import HttpRequest, HttpResponseBase
from django.shortcuts import redirect

from capacity.models import RolloutState
from capacity.rollouts import services
from capacity.rollouts.rules import (
    DEFAULT_DRAIN_LIMIT_S,
    DEFAULT_LOAD_LIMIT_S,
    DEFAULT_WARM_S,
    LANE_STEPS,
    LEAST_LOAD_LIMIT_S,
    MOST_S,
    Step,
    setting_changes,
)
from capacity.rollouts.selectors import (
    LaneRow,
    PoolToRoll,
    RolloutDetail,
    pool_to_roll,
    rollout_detail,
    rollouts_page,
)
from capacity.rollouts.services.acts import Plan
from console.accounts.person import acting
from console.accounts.selectors import Permission, can, require
from console.errors import DomainError, NotFound
from console.web import units
from console.web.forms import ServiceForm, TypedConfirmation
from console.web.htmx import render
from console.web.tables import Column, Strip, number, pager
from console.web.views import choice, page

MAX_SPEC_CHARS = 20_000
COLUMNS = (
    number("#"),
    Column("Pool"),
    Column("State"),
    Column("Progress", meaning="Replicas at the new revision, of those at the start"),
    Column("Revision"),
    Column("Started"),
    Column("By"),
    Column("Reason"),
    Column("Cause", meaning="Why it stopped or turned back"),
    Column("Ended"),
)
_SHOWN_STEPS = tuple(step for step in LANE_STEPS if step is not Step.DONE)
_MEANINGS = {
    Step.SURGE: "One more replica is wanted",
    Step.LOAD: "Its engine starts and loads the model",
    Step.IDENTIFY: "It serves the model, weights and version asked for",
    Step.PROBE: "It completes a token",
    Step.WARM: "It takes work while its share rises",
    Step.SHIFT: "The old one takes nothing new",
    Step.DRAIN: "The old one finishes its calls and stops",
}
LANE_COLUMNS = (
    number("Lane"),
    Column("Replica"),
    *(number(step.value.capitalize(), "s", _MEANINGS[step]) for step in _SHOWN_STEPS),
    Column("Now"),
)
FILTERS = ("active", *RolloutState.values)


@dataclass(frozen=True, slots=True)
class Cell:
    """A step of a lane in the timeline: glyph and tone say its state, `text` its seconds."""

    tone: str
    glyph: str
    text: str
    words: str


@dataclass(frozen=True, slots=True)
class Act:
    """A button of the page; `why_not` is what it needs when it may not be pressed."""

    name: str
    label: str
    is_danger: bool = False
    why_not: str = ""


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
    load_limit_s = forms.IntegerField(
        label="Load limit, s",
        min_value=LEAST_LOAD_LIMIT_S,
        max_value=MOST_S,
        initial=DEFAULT_LOAD_LIMIT_S,
    )
    warm_s = forms.IntegerField(
        label="Slow start, s",
        min_value=0,
        max_value=MOST_S,
        initial=DEFAULT_WARM_S,
        help_text="Gateways ramp a new replica up over 60 s.",
    )
    drain_limit_s = forms.IntegerField(
        label="Drain limit, s",
        min_value=0,
        max_value=MOST_S,
        initial=DEFAULT_DRAIN_LIMIT_S,
        help_text="Calls still open after it are cut.",
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
        if "\\u0000" in text:
            raise forms.ValidationError("A text holds NUL, which cannot be kept.")
        return found


class ReasonForm(ServiceForm):
    """Why; kept in the audit trail."""

    reason = forms.CharField(max_length=400, required=False)


class AbortForm(TypedConfirmation):
    """Stopping half way asks for the pool's name and a reason."""

    reason = forms.CharField(max_length=400)


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")


@page("GET", query=("pool", "state", "after"))
def rollouts(request: HttpRequest) -> HttpResponseBase:
    """Rollouts, newest first."""
    require(request.user, Permission.VIEW_ALL)
    pool = request.GET.get("pool", "")[:120]
    state = choice(request, "state", FILTERS, "")
    found = rollouts_page(pool=pool, state=state, after=request.GET.get("after"))
    context = {
        "page": found,
        "pager": pager(request, found, "rows"),
        "columns": COLUMNS,
        "pool": pool,
        "state": state,
        "states": FILTERS,
    }
    return render(request, "capacity/rollouts.html", "rows", context)


@page("GET")
def rollout(request: HttpRequest, rollout_id: int) -> HttpResponseBase:
    """One rollout; htmx asks again every two seconds while it has the pool."""
    require(request.user, Permission.VIEW_ALL)
    found = rollout_detail(rollout_id)
    may_run = can(request.user, Permission.ROLLOUT_RUN)
    context = {
        "detail": found,
        "row": found.row,
        "lanes": [(lane, _cells(lane), _now(lane)) for lane in found.lanes],
        "columns": LANE_COLUMNS,
        "changes": setting_changes(found.before, found.after),
        "strips": _strips(found),
        "acts": _acts(found, may_run=may_run),
        "ready_note": f"of {found.desired_replicas} desired",
        "progress_note": f"{found.row.replaced} of {found.row.replicas} replicas",
        "eta": units.age(found.eta_s) if found.eta_s is not None else units.UNKNOWN,
        "eta_note": "at the pace of finished lanes" if found.eta_s is not None else _no_eta(found),
    }
    return render(request, "capacity/rollout.html", "live", context)


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
    status = 422 if form.errors else 200
    return render(request, "capacity/start_rollout.html", "", context, status=status)


_DO: dict[str, Callable[..., None]] = {
    "pause": services.pause,
    "resume": services.resume,
    "abort": services.abort,
    "roll-back": services.roll_back,
}
_EFFECTS = {
    "pause": "No further step is taken until it is resumed. What loads or drains goes on.",
    "resume": "It goes on where it stood; the time that it stood still counts for no deadline.",
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
    }
    status = 422 if form.errors else 200
    return render(request, "capacity/rollout_act.html", "", context, status=status)


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


def _strips(found: RolloutDetail) -> list[Strip]:
    """What the rollout's state means for whoever reads it, and what to do."""
    row = found.row
    to, back = row.to_revision, row.from_revision
    said = {
        RolloutState.PAUSED: (
            "warn",
            "It stands still.",
            "Resume it to go on, or abort or roll back.",
        ),
        RolloutState.ROLLING_BACK: (
            "warn",
            f"It goes back to revision {back}: {row.cause}.",
            "Nothing: each replica is brought back by itself.",
        ),
        RolloutState.ROLLED_BACK: (
            "warn",
            f"Every replica runs revision {back} again: {row.cause}.",
            "Mend the cause, then start another rollout of the pool.",
        ),
        RolloutState.FAILED: (
            "bad",
            f"The way back failed: {row.cause}.",
            "Mend the cause, then resume to try the way back again.",
        ),
        RolloutState.CANCELLED: (
            "warn",
            f"Stopped half way: {row.replaced} of {row.replicas} replicas run revision {to}, "
            f"the pool's own is {back}. {row.cause}",
            "Roll back, or start another rollout of the pool.",
        ),
    }.get(RolloutState(row.state))
    if said is None:
        return []
    tone, text, next_step = said
    return [Strip(tone, row.state.replace("_", " "), text, next_step=next_step)]


def _acts(found: RolloutDetail, *, may_run: bool) -> list[Act]:
    """The buttons that fit the state, with the reason where one may not be pressed."""
    needs = "" if may_run else "Needs the permission rollout_run"
    taken = f"Rollout {found.other_id} has the pool" if found.other_id else ""
    superseded = "" if found.is_way_back_known else "The pool has been rolled out since"
    state = found.row.state
    if state == RolloutState.RUNNING:
        names = ["pause", "abort", "roll-back"]
    elif state == RolloutState.PAUSED:
        names = ["resume", "abort", "roll-back"]
    elif state == RolloutState.ROLLING_BACK:
        names = ["pause", "abort"]
    elif state == RolloutState.FAILED:
        names = ["resume"]
    elif state == RolloutState.CANCELLED:
        names = ["roll-back"]
    else:
        names = []
    is_over = state in (RolloutState.FAILED, RolloutState.CANCELLED)
    why_not = needs or (is_over and (taken or superseded)) or ""
    return [
        Act(name, name.replace("-", " ").capitalize(), name in ("abort", "roll-back"), why_not)
        for name in names
    ]


def _cells(lane: LaneRow) -> list[Cell]:
    """One cell a step; in a dropped lane the last step taken is the one that failed."""
    taken = {one.step: one for one in lane.steps if one.begun_at is not None}
    order = [step for step in _SHOWN_STEPS if step in taken]
    last = order[-1] if order else None
    cells = []
    for step in _SHOWN_STEPS:
        one = taken.get(step)
        if one is None or one.took_s is None:
            cells.append(Cell("none", "○", "", f"{step}: not begun"))
            continue
        text = f"{one.took_s:.1f}"
        if lane.result == Step.DROPPED and step is last:
            cells.append(Cell("bad", "■", text, f"{step}: given up after {text} s"))
        elif one.ended_at is None:
            cells.append(Cell("warn", "▲", text, f"{step}: under way for {text} s"))
        else:
            cells.append(Cell("ok", "●", text, f"{step}: took {text} s"))
    return cells


def _now(lane: LaneRow) -> str:
    if lane.result:
        return lane.cause or "replaced"
    if lane.step == Step.LOAD and lane.new_lifecycle:
        return f"{lane.new} is {lane.new_lifecycle}"
    return _MEANINGS[Step(lane.step)].lower()


def _no_eta(found: RolloutDetail) -> str:
    moving: Sequence[str] = (RolloutState.RUNNING.value, RolloutState.ROLLING_BACK.value)
    return "known after the first lane" if found.row.state in moving else "it does not move"
