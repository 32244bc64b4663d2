"""Capped tasks at this gateway: which task a call belongs to, where its counters are, who refused.

A task's window begins with its first call, which only the store knows. A gateway that has not seen
the task proposes now; if the task is older, the script says since when, and the call is sent again.
"""

from typing import Any, Final

from routing.contracts.enums import Dimension, LimitScope
from routing.contracts.snapshot import KeyEntry, PolicyEntry, TaskCaps, TenantEntry
from routing.decision.types import Reason, Refusal
from routing.decision.workflow import (
    Place,
    TaskAsk,
    TaskGroup,
    groups_of,
    over_counter,
    over_repeats,
    over_wall,
)
from routing.gateway.ask import Ask, Template
from routing.gateway.dialects.body import Call
from routing.gateway.dialects.pair import pair_digest
from routing.gateway.names import names_of
from routing.store.reservations import NO_HELD, NO_USED
from routing.store.workflow import (
    FIGURE,
    FIGURE_CHAIN,
    MOVED_PARENT_CAP,
    MOVED_PARENT_START,
    MOVED_START,
    NO_CHAIN,
    OVER_REPEATS,
    OVER_WALL,
    TASKS_MAX,
    TOO_MANY,
    TaskClaim,
    read_chain,
)

MAX_PLACES: Final = 50_000  # tasks whose start is remembered; about 10 MB
MAX_TEMPLATES: Final = 10_000  # tasks x models at work here; about 30 MB
TASKS_RETRY_S: Final = 60.0  # tasks are forgotten one by one, an hour after their wall
_NO_CAPS: Final = TaskCaps()


def task_of(
    policy: PolicyEntry,
    headers: dict[bytes, bytes],
    tenant: TenantEntry,
    model: str,
    call: Call | None,
) -> TaskAsk | None:
    """The capped task that a call is a step of; None where the policy caps nothing of it.

    A child of an uncapped kind is counted, for its parent's sake. A use of a resource (no `call`)
    says nothing of what it is for, so its repeats are not counted.
    """
    if not policy.workflows or not (names := names_of(headers)).task_id:
        return None
    parent = names.parent_id if names.parent_id != names.task_id else ""
    caps = policy.caps_of(names.task_kind) or (_NO_CAPS if parent else None)
    if caps is None:
        return None
    signature = b""
    if call is not None and caps.max_repeats is not None:
        signature = pair_digest(tenant.cache_salt, model, call)
    return TaskAsk(names.task_id, names.task_kind, parent, names.step, caps, signature)


class Tasks:
    """Where tasks began, as far as this process was told, and what their calls touch."""

    def __init__(self) -> None:
        """Nothing is known."""
        self._places: dict[tuple[str, str], Place] = {}
        self._templates: dict[tuple[str, str, str, str, str], Template] = {}

    def template(self, ask: Ask, task: TaskAsk, now_ms: int) -> Template:
        """Counters of a call of this task, made anew when its start or its caps have changed."""
        groups = self._groups(ask.tenant.id, task, now_ms)
        name = (ask.tenant.id, ask.key.id, ask.model, ask.work_class, task.task)
        known = self._templates.get(name)
        if known is not None and _is_current(known, ask.tenant, ask.key, groups):
            return known
        if len(self._templates) >= MAX_TEMPLATES:
            self._templates.clear()
        fresh = Template(ask.tenant, ask.key, ask.model, ask.work_class, groups)
        self._templates[name] = fresh
        return fresh

    def learn(self, tenant_id: str, task: TaskAsk, reply: list[Any]) -> None:
        """Since when a task and its parent are known to the store."""
        self._keep((tenant_id, task.task), Place(reply[MOVED_START], task.spend_cap))
        if task.parent:
            place = Place(reply[MOVED_PARENT_START], reply[MOVED_PARENT_CAP])
            self._keep((tenant_id, task.parent), place)

    def _groups(self, tenant_id: str, task: TaskAsk, now_ms: int) -> tuple[TaskGroup, ...]:
        unknown = Place(now_ms, task.spend_cap)
        own = self._places.get((tenant_id, task.task))
        if own is None or own.start_ms + task.life_ms <= now_ms:
            own = unknown
        if own.spend_cap != task.spend_cap or own is unknown:
            own = self._keep((tenant_id, task.task), Place(own.start_ms, task.spend_cap))
        parent = self._places.get((tenant_id, task.parent)) if task.parent else None
        if task.parent and parent is None:
            parent = self._keep((tenant_id, task.parent), unknown)
        return groups_of(task, own, parent or unknown)

    def _keep(self, name: tuple[str, str], place: Place) -> Place:
        if len(self._places) >= MAX_PLACES:
            self._places.clear()
        self._places[name] = place
        return place


def _is_current(
    template: Template, tenant: TenantEntry, key: KeyEntry, groups: tuple[TaskGroup, ...]
) -> bool:
    same = template.tenant is tenant and template.key is key
    return same and template.task_groups == groups


def claim_of(ask: Ask, task: TaskAsk, template: Template) -> TaskClaim:
    """What the script is told beside the plan of `template`."""
    own, *above = template.task_groups
    parent = Place(0, 0)
    if above:
        parent = Place(above[0].start_ms, dict(above[0].dims)[Dimension.SPEND_NANOUSD])
    return TaskClaim(
        task,
        Place(own.start_ms, task.spend_cap),
        parent,
        len(template.groups) - len(template.task_groups) + 1,
        ask.model,
        ask.amounts.spend_nanousd,
    )


def task_denial(ask: Ask, group: TaskGroup, dimension: Dimension, reply: list[Any]) -> Refusal:
    """A counter of the task, or of its parent, is full."""
    assert ask.task is not None  # noqa: S101 - only its calls have such counters
    seen = (reply[NO_USED], reply[NO_HELD])
    chain = read_chain(reply[NO_CHAIN])
    return over_counter(ask.task, group, dimension, seen, ask.amounts, chain)


def refusal_in(task: TaskAsk, verdict: bytes, reply: list[Any]) -> Refusal | None:
    """What the task's record refuses; None for any other verdict."""
    if verdict == OVER_WALL:
        return over_wall(task, reply[FIGURE], read_chain(reply[FIGURE_CHAIN]))
    if verdict == OVER_REPEATS:
        return over_repeats(task, reply[FIGURE], read_chain(reply[FIGURE_CHAIN]))
    return _MANY_TASKS if verdict == TOO_MANY else None


_MANY_TASKS: Final = Refusal(
    Reason.RATE_LIMITED,
    f"The tenant has {TASKS_MAX} tasks of the last hours, as many as are kept: send on under their "
    "ids, or wait until some are forgotten (an hour after their longest time).",
    TASKS_RETRY_S,
    scope=LimitScope.TENANT,
    limit="live_tasks",
)
