"""A playbook never flaps inside its band, undoes all it did, and lets nothing stay for ever."""

from dataclasses import dataclass, field
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from routing.contracts.enums import WorkClass
from routing.contracts.override import OverrideKind
from routing.decision.playbook import (
    Act,
    ActKind,
    Measure,
    Rule,
    State,
    Step,
    Timing,
    is_idle,
    step,
    stop,
)

EVERY_S = 5.0
PAUSE = Measure(OverrideKind.PAUSE, WorkClass.BATCH)


@st.composite
def rules(draw: st.DrawFn) -> Rule:
    """One to four steps with rising levels, and any timing that a document may have."""
    levels = sorted(draw(st.lists(st.floats(0.1, 10), min_size=1, max_size=4, unique=True)))
    steps = tuple(
        Step(f"s{at}", enter, enter * draw(st.floats(0.1, 0.9)), "why", (PAUSE,))
        for at, enter in enumerate(levels)
    )
    seconds = st.floats(0, 120)
    timing = Timing(
        enter_for_s=draw(seconds),
        leave_for_s=draw(seconds),
        up_every_s=draw(seconds),
        down_every_s=draw(seconds),
        cooldown_s=draw(seconds),
        hold_s=draw(st.floats(30, 300)),
        max_s=draw(st.floats(60, 3600)),
        unknown_s=draw(st.floats(0, 120)),
    )
    return Rule(steps, timing, draw(st.booleans()))


values = st.one_of(st.none(), st.floats(0, 12))


@dataclass
class World:
    """What the acts have done: each engaged step with the end of its lease."""

    rule: Rule
    held: dict[int, float] = field(default_factory=dict)
    state: State = field(default_factory=State)
    runs: int = 0
    log: list[tuple[float, Act]] = field(default_factory=list)

    def evaluate(self, value: float | None, now_s: float) -> tuple[Act, ...]:
        self.state, acts = step(self.rule, self.state, value, now_s)
        self.carry_out(acts, now_s)
        return acts

    def carry_out(self, acts: tuple[Act, ...], now_s: float) -> None:
        for act in acts:
            self.log.append((now_s, act))
            if act.kind is ActKind.ENGAGE:
                assert act.step not in self.held, "engaged twice"
                assert act.step == len(self.held), "engaged out of order"
                assert now_s < act.ends_s <= now_s + self.rule.timing.hold_s
                self.held[act.step] = act.ends_s
            elif act.kind is ActKind.UNDO:
                assert act.step == max(self.held), "undone out of order"
                del self.held[act.step]
            elif act.kind is ActKind.RENEW:
                assert self.held, "nothing to renew"
                assert now_s < act.ends_s <= now_s + self.rule.timing.hold_s
                self.held = dict.fromkeys(self.held, act.ends_s)
            else:
                assert not self.held, "ended with something held"
                self.runs += 1
        assert len(self.held) == self.state.depth


@given(rules(), st.lists(values, max_size=200))
def test_every_act_has_an_end_and_undo_is_last_in_first_out(
    rule: Rule, signal: list[float | None]
) -> None:
    world = World(rule)
    for turn, value in enumerate(signal):
        now_s = 1000.0 + turn * EVERY_S
        world.evaluate(value, now_s)
        if world.held:
            assert max(world.held.values()) <= now_s + rule.timing.hold_s
            # Nobody need be there for the end: it lies in the run's limit and a lease at most.
            latest_s = world.state.began_s + rule.timing.max_s + rule.timing.hold_s
            assert max(world.held.values()) <= latest_s


@given(rules(), st.integers(0, 3), st.lists(st.floats(0, 1), min_size=1, max_size=100))
def test_a_signal_inside_the_band_changes_nothing(
    rule: Rule, depth: int, places: list[float]
) -> None:
    """Engaged to some depth, with a signal between that step's leave and the next one's enter."""
    depth = min(depth, len(rule.steps) - 1) + 1
    low = rule.steps[depth - 1].leave
    high = rule.steps[depth].enter if depth < len(rule.steps) else low * 2 + 1
    start = State(depth=depth, began_s=0.0, changed_s=0.0, ends_s=rule.timing.hold_s)
    world = World(rule, dict.fromkeys(range(depth), rule.timing.hold_s), start)
    for turn, place in enumerate(places, 1):
        now_s = turn * EVERY_S
        if now_s >= rule.timing.max_s:
            break
        value = low + (high - low) * (0.001 + place * 0.998)
        acts = world.evaluate(value, now_s)
        assert {act.kind for act in acts} <= {ActKind.RENEW}
    assert world.state.depth == depth


@given(rules(), st.lists(st.floats(0, 12), max_size=300))
def test_changes_are_at_least_the_stated_times_apart(rule: Rule, signal: list[float]) -> None:
    world, timing = World(rule), rule.timing
    for turn, value in enumerate(signal):
        world.evaluate(value, 1000.0 + turn * EVERY_S)
    changes = [(at, act) for at, act in world.log if act.kind in (ActKind.ENGAGE, ActKind.UNDO)]
    for (before_s, before), (after_s, after) in pairwise(changes):
        gap_s = after_s - before_s
        if before.kind is ActKind.UNDO and after.kind is ActKind.ENGAGE:
            if after.step == 0:
                assert gap_s >= timing.cooldown_s + timing.enter_for_s
            else:
                assert gap_s >= max(timing.enter_for_s, timing.up_every_s)
        elif before.kind is after.kind is ActKind.ENGAGE:
            # Steps that one evaluation engages together count as one change.
            assert not gap_s or gap_s >= max(timing.enter_for_s, timing.up_every_s)
        elif before.kind is ActKind.ENGAGE and not after.why.startswith("It has lasted"):
            assert gap_s >= max(timing.leave_for_s, timing.down_every_s)


@given(rules(), st.lists(values, max_size=100), values)
def test_stopping_restores_everything_at_once_and_rests(
    rule: Rule, signal: list[float | None], then: float | None
) -> None:
    world = World(rule)
    now_s = 1000.0
    for value in signal:
        now_s += EVERY_S
        world.evaluate(value, now_s)
    was_engaged = bool(world.held)
    world.state, acts = stop(rule, world.state, now_s, "A person undid it.", quiet_s=600)
    world.carry_out(acts, now_s)
    assert world.held == {}
    assert world.state.depth == 0
    if was_engaged:
        for turn in range(1, 120):
            if turn * EVERY_S < 600:
                assert world.evaluate(then, now_s + turn * EVERY_S) == ()


@given(rules(), st.floats(1, 100_000))
def test_a_run_that_nobody_evaluated_is_over_and_says_so(rule: Rule, late_s: float) -> None:
    depth = len(rule.steps)
    ends_s = rule.timing.hold_s
    start = State(depth=depth, ends_s=ends_s)
    world = World(rule, dict.fromkeys(range(depth), ends_s), start)
    acts = world.evaluate(12.0, ends_s + late_s)
    assert world.held == {}
    assert acts[-1].kind is ActKind.END
    assert "by itself" in acts[-1].why


@given(rules())
def test_a_signal_that_ends_releases_everything(rule: Rule) -> None:
    world = World(rule)
    top = max(one.enter for one in rule.steps)
    now_s = 1000.0
    while not world.held and now_s < 2000:
        now_s += EVERY_S
        world.evaluate(top, now_s)
    assert world.held
    while world.held and now_s < 10_000:
        now_s += EVERY_S
        world.evaluate(0.0, now_s)
    assert world.held == {}
    assert world.runs == 1
    assert is_idle(world.state, now_s + rule.timing.cooldown_s)


@given(rules())
def test_an_unknown_signal_neither_arms_nor_holds_for_ever(rule: Rule) -> None:
    world = World(rule)
    for turn in range(100):
        assert world.evaluate(None, 1000.0 + turn * EVERY_S) == ()
    depth = len(rule.steps)
    began = State(depth=depth, began_s=0.0, changed_s=0.0, ends_s=rule.timing.hold_s)
    held = World(rule, dict.fromkeys(range(depth), rule.timing.hold_s), began)
    turn = 0
    while held.held:
        turn += 1
        held.evaluate(None, turn * EVERY_S)
        assert turn * EVERY_S <= rule.timing.unknown_s + 2 * EVERY_S
