"""Rollouts: is it safe to go on? Timeline, progress, and what may be done next."""

from collections.abc import Sequence
from dataclasses import dataclass

from django.http import HttpRequest, HttpResponseBase

from capacity.models import RolloutState
from capacity.rollouts.fitting import acts_of
from capacity.rollouts.rules.lanes import LANE_STEPS, Step, setting_changes
from capacity.rollouts.selectors import LaneRow, RolloutDetail, rollout_detail, rollouts_page
from console.accounts.selectors import Permission, can, require
from console.web import units
from console.web.htmx import render
from console.web.tables import Column, Strip, number, pager
from console.web.views import choice, page

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
    Step.JUDGE: "It does no worse than the old ones over the same time",
    Step.SHIFT: "The old one takes nothing new",
    Step.DRAIN: "The old one finishes its calls and stops",
}
LANE_COLUMNS = (
    number("Lane"),
    Column("Replica"),
    *(number(step.value.capitalize(), "s", _MEANINGS[step]) for step in _SHOWN_STEPS),
    Column("Now"),
)
JUDGE_COLUMNS = (
    Column("Side"),
    number("Requests", meaning="Tries that ended since the new one takes work"),
    number("Failed", meaning="Also those that another replica then served"),
    number(
        "TTFT p50", meaning="From sending to the first output, in the second half of slow start"
    ),
    number("TTFT p95"),
)
FILTERS = ("active", *RolloutState.values)


@dataclass(frozen=True, slots=True)
class Cell:
    """A step of a lane in the timeline: glyph and tone say its state, `text` its seconds."""

    tone: str
    glyph: str
    text: str
    words: str


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
        "acts": acts_of(found, may_run=may_run),
        "judged": next((lane for lane in reversed(found.lanes) if lane.judgement), None),
        "judge_columns": JUDGE_COLUMNS,
        "ready_note": f"of {found.desired_replicas} desired",
        "progress_note": f"{found.row.replaced} of {found.row.replicas} replicas",
        "eta": units.age(found.eta_s) if found.eta_s is not None else units.UNKNOWN,
        "eta_note": _eta_note(found),
    }
    return render(request, "capacity/rollout.html", "live", context)


def _strips(found: RolloutDetail) -> list[Strip]:
    """What the rollout's state means for whoever reads it, and what to do."""
    row = found.row
    to, back = row.to_revision, row.from_revision
    said = {
        RolloutState.PAUSED: (
            "warn",
            f"It waits for a person: {row.cause}." if row.cause else "It stands still.",
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


def _eta_note(found: RolloutDetail) -> str:
    moving: Sequence[str] = (RolloutState.RUNNING.value, RolloutState.ROLLING_BACK.value)
    if found.eta_s is not None:
        return "at the pace of its finished lanes" if found.is_own_pace else "as the last one took"
    return "known after the first lane" if found.row.state in moving else "it does not move"
