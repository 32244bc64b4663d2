"""Capped tasks at this gateway: which task a call belongs to, where its counters are, who refused.

A task's window begins with its first call, which only the store knows. A gateway that has not seen
the task proposes now; if the task is older, the script says since when, and the call is sent again.
"""

import time
from typing import Any, Final, TypeVar

from routing.contracts.enums import Dimension, LimitScope
from routing.contracts.snapshot import KeyEntry, PolicyEntry, TaskCaps, TenantEntry
from routing.decision.types import Hold, Reason, Refusal
from routing.decision.workflow import (
    Above,
    Place,
    TaskAsk,
    TaskGroup,
    cut_by_wall,
    groups_of,
    over_counter,
    over_repeats,
    over_wall,
)
from routing.gateway.ask import Ask, Template
from routing.gateway.dialects.body import Call
from routing.gateway.dialects.pair import pair_digest
from routing.gateway.exchange import Exchange
from routing.gateway.names import names_of
from routing.store.reservations import NO_HELD, NO_USED, NOW_MS
from routing.store.workflow import (
    FIGURE,
    FIGURE_CHAIN,
    FIGURE_WALL_MS,
    FIGURE_WHOSE,
    MOVED_ABOVE,
    MOVED_START,
    NO_CHAIN,
    OVER_REPEATS,
    OVER_WALL,
    TASKS_MAX,
    TOO_MANY,
    TaskClaim,
    end_of,
    read_above,
    read_chain,
)

MAX_PLACES: Final = 50_000  # tasks whose start is remembered; about 10 MB
MAX_TEMPLATES: Final = 10_000  # tasks x models at work here; about 30 MB
TASKS_RETRY_S: Final = 60.0  # tasks are forgotten one by one, an hour after their wall
_NO_CAPS: Final = TaskCaps()
_Known = TypeVar("_Known", Place, tuple[Above, ...])


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
        self._above: dict[tuple[str, str], tuple[Above, ...]] = {}
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
        """Since when a task is known to the store, and which are above it."""
        name = (tenant_id, task.task)
        _keep(self._places, name, Place(reply[MOVED_START], task.spend_cap))
        _keep(self._above, name, read_above(reply[MOVED_ABOVE]))

    def _groups(self, tenant_id: str, task: TaskAsk, now_ms: int) -> tuple[TaskGroup, ...]:
        name = (tenant_id, task.task)
        own = self._places.get(name)
        if own is None or own.start_ms + task.life_ms <= now_ms:
            own = _keep(self._places, name, Place(now_ms, task.spend_cap))
        elif own.spend_cap != task.spend_cap:
            own = _keep(self._places, name, Place(own.start_ms, task.spend_cap))
        above = self._above.get(name, ())
        if task.parent and (not above or above[0].task != task.parent):
            parent = Above(task.parent, now_ms, task.spend_cap)
            above = _keep(self._above, name, (parent,))
        return groups_of(task, own, above)


def _keep(known: dict[tuple[str, str], _Known], name: tuple[str, str], fresh: _Known) -> _Known:
    if len(known) >= MAX_PLACES:
        known.clear()
    known[name] = fresh
    return fresh


def _is_current(
    template: Template, tenant: TenantEntry, key: KeyEntry, groups: tuple[TaskGroup, ...]
) -> bool:
    same = template.tenant is tenant and template.key is key
    return same and template.task_groups == groups


def claim_of(ask: Ask, task: TaskAsk, template: Template) -> TaskClaim:
    """What the script is told beside the plan of `template`."""
    own, *above = template.task_groups
    return TaskClaim(
        task,
        Place(own.start_ms, task.spend_cap),
        tuple(Above(one.subject, one.start_ms, one.dims[0][1]) for one in above),
        len(template.groups) - len(template.task_groups) + 1,
        ask.model,
        ask.amounts.spend_nanousd,
    )


def begin_task(exchange: Exchange, hold: Hold, now_ms: int) -> None:
    """Its time, or that of a task above it, ends the call too; `now_ms` is the store's."""
    if hold.task_end is not None:
        exchange.task_ends_s = time.monotonic() + (hold.task_end.at_ms - now_ms) / 1000


def out_of_time(exchange: Exchange, output_tokens: int) -> Refusal:
    """What the caller of a running call is told when its task's time has ended."""
    hold, task = exchange.hold, exchange.task
    end = hold.task_end if hold is not None else None
    assert hold is not None and end is not None  # noqa: S101, PT018 - `begin_task` saw them
    assert task is not None  # noqa: S101
    return cut_by_wall(task, end, hold.task_step, output_tokens)


def task_denial(ask: Ask, group: TaskGroup, dimension: Dimension, reply: list[Any]) -> Refusal:
    """A counter of the task, or of its parent, is full."""
    assert ask.task is not None  # noqa: S101 - only its calls have such counters
    seen = (reply[NO_USED], reply[NO_HELD])
    chain = read_chain(reply[NO_CHAIN])
    return over_counter(ask.task, group, dimension, seen, ask.amounts, chain)


def refusal_in(task: TaskAsk, verdict: bytes, reply: list[Any]) -> Refusal | None:
    """What the task's record refuses; None for any other verdict."""
    if verdict == OVER_WALL:
        elapsed_ms = reply[FIGURE]
        start_ms = reply[NOW_MS] - elapsed_ms
        end = end_of(task.task, reply[FIGURE_WHOSE], reply[FIGURE_WALL_MS], start_ms)
        return over_wall(task, end, elapsed_ms, read_chain(reply[FIGURE_CHAIN]))
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
