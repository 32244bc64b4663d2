"""Playbooks: a signal and ordered steps become acts, with hysteresis, leases and undo.

`step` is one evaluation of one playbook for one subject (a tenant, a pool). A step is engaged when
the signal has been at its `enter` level for `enter_for_s`, and undone when it has been at its
`leave` level or below for `leave_for_s`; between the two nothing changes, so a signal that stays in
the band never makes it flap. Steps are undone last in, first out. What is engaged is held as a
lease of `hold_s` that each evaluation may renew: with nobody evaluating it ends by itself.

Times are seconds of one clock that the caller gives; a clock set back only makes waits longer, and
what was engaged still ends with its lease.
"""

from enum import StrEnum
from typing import Final

import msgspec

from routing.contracts.enums import WorkClass
from routing.contracts.override import OverrideKind

RENEW_RATIO: Final = 0.5  # a lease is renewed when less than this part of it is left


class Signal(StrEnum):
    """What a playbook watches, for each subject of its kind.

    `tenant_input_ratio`: input tokens that a tenant offers a minute, over its usual ones.
    `pool_lost_ratio`: replicas of a pool that are lost, over those it should have.
    `pool_queue_s`: seconds that requests wait inside its engines, the 95th percentile over them.
    `pool_kv_ratio`: KV occupancy, the mean over its engines.
    `objective_burn`: how many times faster than allowed an objective's error budget is spent, over
    the hour and over the last five minutes (the smaller of the two).
    """

    TENANT_INPUT_RATIO = "tenant_input_ratio"
    POOL_LOST_RATIO = "pool_lost_ratio"
    POOL_QUEUE_S = "pool_queue_s"
    POOL_KV_RATIO = "pool_kv_ratio"
    OBJECTIVE_BURN = "objective_burn"


class Measure(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One override that a step sets; its tenant or model follows from the subject.

    `admitted_ratio` must be said of a shed, and of nothing else: an omission would refuse all.
    """

    kind: OverrideKind
    work_class: WorkClass | None = None
    amount: int = 0
    admitted_ratio: float | None = None


class Step(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What to do from `enter` on, until the signal is at `leave`. `reason` is told to callers."""

    title: str
    enter: float
    leave: float
    reason: str
    measures: tuple[Measure, ...]


class Timing(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """When to act. All in seconds.

    `enter_for_s`, `leave_for_s`: how long a level must last. `up_every_s`, `down_every_s`: least
    time between two steps up, or down. `cooldown_s`: rest after the last undo. `hold_s`: the lease.
    `max_s`: a run is ended after it, whatever the signal says. `unknown_s`: how long a run goes on
    without the signal.
    """

    enter_for_s: float = 10.0
    leave_for_s: float = 60.0
    up_every_s: float = 15.0
    down_every_s: float = 60.0
    cooldown_s: float = 60.0
    hold_s: float = 120.0
    max_s: float = 3600.0
    unknown_s: float = 60.0


class Rule(msgspec.Struct, frozen=True):
    """What `step` follows. `skips_steps`: all steps whose `enter` is reached engage at once."""

    steps: tuple[Step, ...]
    timing: Timing = Timing()
    skips_steps: bool = False


class State(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where a playbook stands with one subject. `depth` steps are engaged, from the first on."""

    depth: int = 0
    began_s: float = 0.0
    changed_s: float = 0.0
    ends_s: float = 0.0
    above_since_s: float | None = None
    below_since_s: float | None = None
    unknown_since_s: float | None = None
    quiet_until_s: float = 0.0


class ActKind(StrEnum):
    """What the shell is to carry out, in the order given."""

    ENGAGE = "engage"
    UNDO = "undo"
    RENEW = "renew"
    END = "end"


class Act(msgspec.Struct, frozen=True):
    """One act. `step` is an index for `engage` and `undo`; `ends_s` the lease of what is held."""

    kind: ActKind
    step: int = -1
    ends_s: float = 0.0
    why: str = ""


Result = tuple[State, tuple[Act, ...]]


def step(rule: Rule, state: State, value: float | None, now_s: float) -> Result:
    """One evaluation. `value` None: the signal is not known now; that neither enters nor leaves."""
    if state.depth and now_s >= state.ends_s:
        return _ended_by_itself(state)
    if state.depth and now_s - state.began_s >= rule.timing.max_s:
        return stop(rule, state, now_s, f"It has lasted {rule.timing.max_s:g} s, its limit.")
    if value is None:
        return _unknown(rule, state, now_s)
    state = msgspec.structs.replace(state, unknown_since_s=None)
    state, acts = _up(rule, state, value, now_s)
    if not acts:
        state, acts = _down(rule, state, value, now_s)
    return _renewed(rule, state, acts, now_s)


def stop(
    rule: Rule, state: State, now_s: float, why: str, *, quiet_s: float | None = None
) -> Result:
    """Undo everything now, last in first out; then rest for `quiet_s` (the cooldown)."""
    if not state.depth:
        return state, ()
    undone = tuple(Act(ActKind.UNDO, at, why=why) for at in reversed(range(state.depth)))
    rest_s = rule.timing.cooldown_s if quiet_s is None else quiet_s
    return State(quiet_until_s=now_s + rest_s), (*undone, Act(ActKind.END, why=why))


def is_idle(state: State, now_s: float) -> bool:
    """Whether nothing of it needs to be remembered."""
    return not state.depth and state.above_since_s is None and now_s >= state.quiet_until_s


def _up(rule: Rule, state: State, value: float, now_s: float) -> Result:
    timing, steps = rule.timing, rule.steps
    may = state.depth < len(steps) and now_s >= state.quiet_until_s
    if not may or value < steps[state.depth].enter:
        return msgspec.structs.replace(state, above_since_s=None), ()
    since_s = now_s if state.above_since_s is None else state.above_since_s
    is_due = now_s - since_s >= timing.enter_for_s
    if state.depth and now_s - state.changed_s < timing.up_every_s:
        is_due = False
    if not is_due:
        return msgspec.structs.replace(state, above_since_s=since_s, below_since_s=None), ()
    depth = state.depth + 1
    while rule.skips_steps and depth < len(steps) and value >= steps[depth].enter:
        depth += 1
    ends_s = now_s + timing.hold_s
    acts = tuple(Act(ActKind.ENGAGE, at, ends_s) for at in range(state.depth, depth))
    following = msgspec.structs.replace(
        state,
        depth=depth,
        began_s=state.began_s if state.depth else now_s,
        changed_s=now_s,
        # The lease of what was engaged earlier stays its own until it is renewed.
        ends_s=state.ends_s if state.depth else ends_s,
        above_since_s=None,
        below_since_s=None,
    )
    return following, acts


def _down(rule: Rule, state: State, value: float, now_s: float) -> Result:
    if not state.depth or value > rule.steps[state.depth - 1].leave:
        return msgspec.structs.replace(state, below_since_s=None), ()
    timing = rule.timing
    since_s = now_s if state.below_since_s is None else state.below_since_s
    state = msgspec.structs.replace(state, below_since_s=since_s)
    if now_s - since_s < timing.leave_for_s or now_s - state.changed_s < timing.down_every_s:
        return state, ()
    if state.depth == 1:
        return stop(rule, state, now_s, "The signal has ended.")
    depth = state.depth - 1
    following = msgspec.structs.replace(state, depth=depth, changed_s=now_s, below_since_s=now_s)
    return following, (Act(ActKind.UNDO, depth, why="The signal has gone down."),)


def _unknown(rule: Rule, state: State, now_s: float) -> Result:
    since_s = now_s if state.unknown_since_s is None else state.unknown_since_s
    state = msgspec.structs.replace(
        state, above_since_s=None, below_since_s=None, unknown_since_s=since_s
    )
    if not state.depth:
        return msgspec.structs.replace(state, unknown_since_s=None), ()
    if now_s - since_s >= rule.timing.unknown_s:
        why = f"The signal has been unknown for {rule.timing.unknown_s:g} s."
        return stop(rule, state, now_s, why)
    return _renewed(rule, state, (), now_s)


def _renewed(rule: Rule, state: State, acts: tuple[Act, ...], now_s: float) -> Result:
    """Renew the lease when it runs low, never beyond the run's limit."""
    if not state.depth:
        return state, acts
    ends_s = min(now_s + rule.timing.hold_s, state.began_s + rule.timing.max_s)
    is_low = state.ends_s - now_s < rule.timing.hold_s * RENEW_RATIO
    has_new = any(act.kind is ActKind.ENGAGE for act in acts)
    if not (is_low or has_new) or ends_s <= state.ends_s:
        return state, acts
    renewed = msgspec.structs.replace(state, ends_s=ends_s)
    return renewed, (*acts, Act(ActKind.RENEW, ends_s=ends_s))


def _ended_by_itself(state: State) -> Result:
    why = "It ended by itself: nobody evaluated it before its lease was over."
    undone = tuple(Act(ActKind.UNDO, at, why=why) for at in reversed(range(state.depth)))
    return State(), (*undone, Act(ActKind.END, why=why))
