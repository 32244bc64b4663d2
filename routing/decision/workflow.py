"""Caps on agents' tasks: what of a task is counted, and how a refusal says it.

A task is one window of two counters of its own, steps (requests) and spend, from its first call on.
They are counters like those of limits, so they are held, settled, swept and rebuilt with them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from routing.contracts.enums import Dimension, TaskScope
from routing.contracts.snapshot import MAX_TASK_S, TaskCaps
from routing.contracts.spelling import short_usd
from routing.decision.types import Amounts, Reason, Refusal, TaskEnd

MAX_REPEATS: Final = 20  # the store knows the last 64 steps: a loop of three such steps is seen
STEPS_SHOWN: Final = 20  # of a refused task
KEPT_AFTER_MS: Final = 3_600_000  # after its wall a task is known, and refused, this long
MAX_PARENTS: Final = 8  # above a task, whose spend and time bound its calls; so does the script
UNCAPPED: Final = -1
_LONGEST_MS: Final = MAX_TASK_S * 1000 + KEPT_AFTER_MS


@dataclass(frozen=True, slots=True)
class TaskGroup:
    """A task's counter as a request touches it: dimensions with limits, -1 to count only.

    `subject` is the task's name; its window is [start_ms, end_ms) on the store's clock.
    """

    scope: TaskScope
    subject: str
    start_ms: int
    end_ms: int
    dims: tuple[tuple[Dimension, int], ...]

    @property
    def is_gauge(self) -> bool:
        """False: it lasts as long as the task."""
        return False


@dataclass(frozen=True, slots=True)
class TaskAsk:
    """The task that a call belongs to: names, its kind's caps, and what tells its step from others.

    `signature` has 8 bytes; it is empty where nothing tells one step from another.
    """

    task: str
    kind: str
    parent: str
    step: str
    caps: TaskCaps
    signature: bytes = b""

    @property
    def spend_cap(self) -> int:
        """In nano-dollars; -1 without one."""
        return UNCAPPED if self.caps.max_spend_nanousd is None else self.caps.max_spend_nanousd

    @property
    def life_ms(self) -> int:
        """From its first call until it is forgotten."""
        return self.caps.max_wall_s * 1000 + KEPT_AFTER_MS


class Place(NamedTuple):
    """When a task began (store's Unix ms), and the cap on its spend in nano-dollars (-1: none)."""

    start_ms: int
    spend_cap: int


class Above(NamedTuple):
    """A task that a call's own one was started by, directly or not, and its place."""

    task: str
    start_ms: int
    spend_cap: int


class TaskStep(NamedTuple):
    """One call of a refused task; `charged_nanousd` is None while it runs, or if it was lost."""

    number: int
    request_id: str
    model: str
    step: str
    at_ms: int
    held_nanousd: int
    charged_nanousd: int | None


class Chain(NamedTuple):
    """What is known of a task: its start, how many steps, its parents upwards, the last steps."""

    start_ms: int
    steps: int
    parents: tuple[str, ...]
    shown: tuple[TaskStep, ...]


class TaskStory(NamedTuple):
    """A refused task, for the caller's eyes."""

    task: str
    kind: str
    cap: str
    used: str
    chain: Chain


def groups_of(task: TaskAsk, own: Place, above: Sequence[Above]) -> tuple[TaskGroup, ...]:
    """The counters that a call of this task touches beside its limits: its own, and spend above."""
    steps = UNCAPPED if task.caps.max_steps is None else task.caps.max_steps
    dims = ((Dimension.REQUESTS, steps), (Dimension.SPEND_NANOUSD, task.spend_cap))
    life_ms = task.life_ms
    group = TaskGroup(TaskScope.TASK, task.task, own.start_ms, own.start_ms + life_ms, dims)
    return (group, *(_above(one) for one in above))


def _above(one: Above) -> TaskGroup:
    spend = ((Dimension.SPEND_NANOUSD, one.spend_cap),)
    end_ms = one.start_ms + _LONGEST_MS  # its own kind is not known here
    return TaskGroup(TaskScope.PARENT, one.task, one.start_ms, end_ms, spend)


def _named(task: TaskAsk, scope: TaskScope, name: str) -> str:
    if scope is TaskScope.TASK:
        return f"Task {name}"
    how = "which started" if name == task.parent else "above"
    return f"Task {name}, {how} task {task.task},"


def over_counter(
    task: TaskAsk, group: TaskGroup, dimension: Dimension, seen: tuple[int, int], need: Amounts,
    chain: Chain,
) -> Refusal:  # fmt: skip
    """The refusal of a call whose task has no step or no money left; `seen` is used and held."""
    used, held = seen
    limit = dict(group.dims)[dimension]
    whose = _named(task, group.scope, group.subject)
    if dimension is Dimension.REQUESTS:
        cap, said = "task_steps", f"{used + held} of {limit} steps"
        text = f"{whose} has taken {said}."
        return _refusal(Reason.TASK_STEPS, text, task, (cap, group.scope, said), chain)
    said = f"{short_usd(used)} used and {short_usd(held)} held of {short_usd(limit)}"
    text = f"{whose} has {said}; this call may need {short_usd(need.spend_nanousd)}."
    return _refusal(Reason.TASK_SPEND, text, task, ("task_spend", group.scope, said), chain)


def over_wall(task: TaskAsk, end: TaskEnd, elapsed_ms: int, chain: Chain) -> Refusal:
    """The refusal of a call that comes too late after its task's first one, or one above it."""
    text = (
        f"{_named(task, end.scope, end.task)} made its first call {elapsed_ms // 1000} s ago; "
        f"it may last {end.wall_s} s."
    )
    return _late(task, end, text, elapsed_ms, chain)


def cut_by_wall(task: TaskAsk, end: TaskEnd, step: int, output_tokens: int) -> Refusal:
    """What a call that runs is told when its task's time ends, `output_tokens` after its first."""
    after = f" after {output_tokens} output tokens" if output_tokens else ""
    text = (
        f"{_named(task, end.scope, end.task)} may last {end.wall_s} s, which are over: "
        f"this call was ended{after}."
    )
    chain = Chain(end.start_ms, step, end.parents, ())
    return _late(task, end, text, end.wall_s * 1000, chain)


def _late(task: TaskAsk, end: TaskEnd, text: str, elapsed_ms: int, chain: Chain) -> Refusal:
    said = f"{elapsed_ms // 1000} of {end.wall_s} s"
    return _refusal(Reason.TASK_WALL, text, task, ("task_wall", end.scope, said), chain)


def over_repeats(task: TaskAsk, times: int, chain: Chain) -> Refusal:
    """The refusal of a call that its task has made too often."""
    said = f"{times} of {task.caps.max_repeats} times"
    text = f"Task {task.task} has made this same call {said} in its last 64 steps: it loops."
    return _refusal(Reason.TASK_REPEATS, text, task, ("task_repeats", TaskScope.TASK, said), chain)


def _refusal(
    reason: Reason, text: str, task: TaskAsk, cap: tuple[str, TaskScope, str], chain: Chain
) -> Refusal:
    limit, scope, used = cap
    advice = "Waiting does not help: end the task, or start another one."
    parents = f" Started by {' < '.join(chain.parents)}." if chain.parents else ""
    steps = "; ".join(_line(step) for step in chain.shown)
    shown = f" Last steps: {steps}." if steps else ""
    return Refusal(
        reason,
        f"{text} {advice}{parents}{shown}",
        scope=scope,
        limit=limit,
        story=TaskStory(task.task, task.kind, limit, used, chain),
    )


def _line(step: TaskStep) -> str:
    cost = short_usd(step.held_nanousd) + " held"
    if step.charged_nanousd is not None:
        cost = short_usd(step.charged_nanousd)
    name = f" {step.step}" if step.step else ""
    return f"#{step.number}{name} {step.model} {cost}"


def in_order(steps: Sequence[TaskStep]) -> tuple[TaskStep, ...]:
    """The last steps, oldest first, at most `STEPS_SHOWN`."""
    return tuple(sorted(steps, key=lambda step: step.number)[-STEPS_SHOWN:])
