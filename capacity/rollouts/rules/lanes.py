"""A rollout as a state machine: what is seen of a lane decides its next step and the act for it.

A lane replaces one replica: `surge` (one more replica is wanted) -> `load` (its engine starts) ->
`identify` (it serves what was asked for) -> `probe` (it completes a token) -> `warm` (it takes work
while its share rises) -> `judge` (it does no worse than the old ones did over the same time) ->
`shift` (the old one takes nothing new) -> `drain` (the old one finishes) -> `done`. What breaks
before `shift` costs nothing but the new replica: the rollout turns back.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from capacity.drivers.base import Identity
from capacity.rollouts.rules.judging import NOT_JUDGED, Bar, Finding, Judgement
from routing.contracts.enums import ReplicaHealth, ReplicaLifecycle

CHECK_LIMIT_S = 60.0  # a fresh engine that neither says what it is nor completes a token is broken
DEFAULT_LOAD_LIMIT_S = 600
DEFAULT_WARM_S = 60  # as long as gateways ramp a new replica up
DEFAULT_DRAIN_LIMIT_S = 60
LEAST_LOAD_LIMIT_S = 5
MOST_S = 3600  # of each of these
MOST_PAUSES = 20
MOST_PAUSE = 600  # as many replicas as a page shows of a rollout
MOST_CAUSE_CHARS = 400  # as its column
UNHEALTHY = (ReplicaHealth.HUNG, ReplicaHealth.LOST)


class Step(StrEnum):
    """Steps of a lane in order; `dropped` is the other end."""

    SURGE = "surge"
    LOAD = "load"
    IDENTIFY = "identify"
    PROBE = "probe"
    WARM = "warm"
    JUDGE = "judge"
    SHIFT = "shift"
    DRAIN = "drain"
    DONE = "done"
    DROPPED = "dropped"


LANE_STEPS = tuple(step for step in Step if step is not Step.DROPPED)
# From here on the old replica is going: the lane can only be finished.
COMMITTED = (Step.DRAIN, Step.DONE)


_AT_ONCE = {Step.SURGE: Step.LOAD, Step.SHIFT: Step.DRAIN}


class Verdict(StrEnum):
    """What to do with a lane now."""

    WAIT = "wait"
    CHECK = "check"  # ask the engine, then `checked`
    GO = "go"
    HOLD = "hold"  # a person decides
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Limits:
    """Times of a rollout in seconds, and what its new replicas are judged by."""

    load_s: float = DEFAULT_LOAD_LIMIT_S
    warm_s: float = DEFAULT_WARM_S
    bar: Bar = NOT_JUDGED


@dataclass(frozen=True, slots=True)
class NewReplica:
    """The replica that a lane brings up, as it is seen. `health` is None without a fresh report."""

    lifecycle: ReplicaLifecycle
    cause: str = ""
    failures: int = 0
    health: ReplicaHealth | None = None
    health_reason: str = ""


@dataclass(frozen=True, slots=True)
class LaneView:
    """A lane: its step, since when, its new replica (None before `surge`), whether the old left.

    `judgement` compares the new one with the old ones; None where nothing is to be judged.
    """

    step: Step
    since_s: float
    new: NewReplica | None = None
    is_old_gone: bool = False
    judgement: Judgement | None = None


@dataclass(frozen=True, slots=True)
class Next:
    """The verdict; `step` is where to go with `GO`.

    `cause` says why it failed, holds or goes on unjudged, or what it waits for.
    """

    verdict: Verdict
    step: Step | None = None
    cause: str = ""


@dataclass(frozen=True, slots=True)
class Member:
    """A replica that the pool wants, with the revision that it runs."""

    replica_id: int
    ordinal: int
    revision: int
    is_ready: bool


def advance(lane: LaneView, limits: Limits, now_s: float) -> Next:
    """What a lane does next."""
    if lane.step in _AT_ONCE:
        return _go(_AT_ONCE[lane.step])
    if lane.step is Step.DRAIN:
        return _go(Step.DONE) if lane.is_old_gone else _wait("the old replica finishes its calls")
    if lane.new is None:
        return _fail("the new replica is gone")
    if lane.new.lifecycle is ReplicaLifecycle.FAILED or lane.new.failures:
        return _fail(lane.new.cause or "its engine failed")
    return _new_one(lane, lane.new, max(0.0, now_s - lane.since_s), limits)


def _new_one(lane: LaneView, new: NewReplica, age_s: float, limits: Limits) -> Next:
    if lane.step is Step.LOAD:
        return _load(new, age_s, limits)
    if lane.step in (Step.WARM, Step.JUDGE):
        return _serving(lane, new, age_s, limits)
    if new.lifecycle is not ReplicaLifecycle.WARMING:
        return _fail(f"it became {new.lifecycle} before its checks: {new.cause}")
    return Next(Verdict.CHECK)


def _load(new: NewReplica, age_s: float, limits: Limits) -> Next:
    if new.lifecycle is ReplicaLifecycle.WARMING:
        return _go(Step.IDENTIFY)
    if age_s > limits.load_s:
        return _fail(f"not loaded within {limits.load_s:.0f} s")
    return _wait(f"its engine loads, {limits.load_s:.0f} s at most")


def _serving(lane: LaneView, new: NewReplica, age_s: float, limits: Limits) -> Next:
    if new.lifecycle is not ReplicaLifecycle.READY:
        return _fail(f"it became {new.lifecycle} while it warmed up: {new.cause}")
    if new.health in UNHEALTHY:
        return _fail(f"it is {new.health} while it warms up: {new.health_reason}")
    found = lane.judgement
    if found is not None and found.finding is Finding.FAILING:
        return _fail(found.words)  # at once: nothing is gained by more failed requests
    if lane.step is Step.WARM:
        if age_s < limits.warm_s:
            return _wait(f"its share rises for {limits.warm_s:.0f} s")
        return _go(Step.JUDGE)
    return _judged(found, age_s, limits.bar)


def _judged(found: Judgement | None, age_s: float, bar: Bar) -> Next:
    if found is None:
        return _go(Step.SHIFT)
    if found.finding is Finding.SLOWER:
        return _fail(found.words)
    if found.finding is Finding.TOO_FEW:
        if age_s < bar.limit_s:
            return _wait(f"{found.words}; at most {bar.limit_s:.0f} s")
        if bar.holds_on_too_few:
            return Next(Verdict.HOLD, cause=found.words[:MOST_CAUSE_CHARS])
        return Next(Verdict.GO, Step.SHIFT, f"not judged: {found.words}"[:MOST_CAUSE_CHARS])
    return Next(Verdict.GO, Step.SHIFT, found.words[:MOST_CAUSE_CHARS])


def checked(step: Step, found: str, *, is_answer: bool, age_s: float) -> Next:
    """After a check: `found` says what is wrong, empty for nothing.

    No answer is asked for again until `CHECK_LIMIT_S`; a wrong answer is final.
    """
    if not is_answer:
        if age_s > CHECK_LIMIT_S:
            return _fail(f"{found} within {CHECK_LIMIT_S:.0f} s")
        return _wait(found)
    if found:
        return _fail(found)
    return _go(Step.PROBE if step is Step.IDENTIFY else Step.WARM)


def misfit(seen: Identity, model: str, engine_version: str) -> str:
    """Why an engine is not the one asked for; empty if it is.

    A version fits if it is the one asked for or a build of it (`0.32.0` takes `0.32.0+cpu`).
    """
    if model not in seen.serves:
        return f"it serves {', '.join(seen.serves) or 'nothing'}, not {model}"
    if seen.expected_root and seen.root != seen.expected_root:
        return f"it loaded {seen.root or 'something unnamed'}, not {seen.expected_root}"
    if engine_version and not _is_build_of(seen.version, engine_version):
        return f"its engine is version {seen.version or 'unknown'}, not {engine_version}"
    return ""


def _is_build_of(version: str, wanted: str) -> bool:
    return version == wanted or version.startswith((f"{wanted}+", f"{wanted}."))


def next_to_replace(members: Sequence[Member], revision: int) -> Member | None:
    """The replica to replace next: one that does no work first, then by number; None if all run it.

    It follows from what the pool holds, not from what was planned: so a rollout that is turned
    back, or taken up again after an abort, finishes what is left.
    """
    left = [member for member in members if member.revision != revision]
    return min(left, key=lambda member: (member.is_ready, member.ordinal), default=None)


def pause_is_due(pause_after: Sequence[int], replaced: int, taken: int) -> bool:
    """Whether a person is waited for now. `taken`: the largest number where that has been done."""
    return replaced > taken and replaced in pause_after


def progress_ratio(replicas: int, replaced: int, step: Step | None) -> float:
    """Share of the way: replicas replaced, and the steps that the open lane has behind it."""
    if replicas <= 0:
        return 0.0
    part = LANE_STEPS.index(step) / (len(LANE_STEPS) - 1) if step in LANE_STEPS else 0.0
    return max(0.0, min(1.0, (replaced + part) / replicas))


def left_s(lanes_left: int, lane_s: float, in_lane_s: float) -> float:
    """Seconds until the end: `lanes_left`, the open one among them, at `lane_s` each."""
    return max(0.0, lanes_left * lane_s - min(in_lane_s, lane_s))


def _go(step: Step) -> Next:
    return Next(Verdict.GO, step)


def _wait(cause: str) -> Next:
    return Next(Verdict.WAIT, cause=cause)


def _fail(cause: str) -> Next:
    return Next(Verdict.FAIL, cause=cause[:MOST_CAUSE_CHARS])


_ABSENT = "—"


@dataclass(frozen=True, slots=True)
class SettingChange:
    """One setting that differs between two revisions; `—` where one has none."""

    name: str
    before: str
    after: str


def setting_changes(
    before: Mapping[str, object], after: Mapping[str, object]
) -> tuple[SettingChange, ...]:
    """What differs, by name."""
    return tuple(
        SettingChange(name, _shown(before, name), _shown(after, name))
        for name in sorted({*before, *after})
        if name not in before or name not in after or before[name] != after[name]
    )


def _shown(settings: Mapping[str, object], name: str) -> str:
    return str(settings[name]) if name in settings else _ABSENT
