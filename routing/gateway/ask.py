"""What a request asks to hold, and what of that stays the same from call to call."""

from dataclasses import dataclass
from typing import Final

from routing.contracts.enums import WindowKind, WorkClass
from routing.contracts.snapshot import KeyEntry, OutagePolicy, Price, TenantEntry
from routing.decision.limits import AMOUNT_ORDER, Edges, groups_for, rates_of
from routing.decision.shares import Need
from routing.decision.types import Amounts, Refusal
from routing.decision.workflow import TaskAsk, TaskGroup
from routing.gateway.returns import Caller
from routing.store.plans import AnyGroup, Plan, suffix_of
from routing.store.reservations import group_edges

NO_PLAN: Final = Plan("", (), (), bucket=0, epoch=-1)
EDGE_SLACK_MS: Final = 500  # our estimate of the store's clock may run ahead of an edge by this


@dataclass(slots=True)
class Ask:
    """What a request asks to hold.

    `info` is its encoded `HoldInfo` (`routing.contracts.usage`), `body` tells it from other calls.
    `once` names its idempotency key: then it is answered by the store or not at all, since a local
    share cannot know whether it was charged before; `unless_known` is then the answer to a call
    that is new, which holds nothing. `ttl_ms` (a use of a resource, `once` is then
    `store.uses.USE`) is how long the hold lasts without a sign of life. `task`: the capped task
    that it is a step of.
    """

    request_id: str
    tenant: TenantEntry
    key: KeyEntry
    model: str
    work_class: WorkClass
    amounts: Amounts
    price: Price
    outage: OutagePolicy
    info: bytes
    once: str = ""
    body: bytes = b""
    ttl_ms: int = 0
    unless_known: Refusal | None = None
    task: TaskAsk | None = None

    @property
    def caller(self) -> Caller:
        """Who asks, for the times that callers are told."""
        return Caller(self.tenant.id, self.tenant.timezone, self.key.id, self.body)


class Template:
    """What stays the same for all requests of one tenant, key, model and class."""

    __slots__ = (
        "edges",
        "groups",
        "has_gauge_limit",
        "key",
        "left",
        "left_edges",
        "plan",
        "rates",
        "renew_at_ms",
        "task_groups",
        "tenant",
    )

    def __init__(
        self,
        tenant: TenantEntry,
        key: KeyEntry,
        model: str,
        work_class: str,
        task_groups: tuple[TaskGroup, ...] = (),
    ) -> None:
        self.tenant = tenant
        self.key = key
        limits = groups_for(tenant, key, model, work_class)
        self.task_groups = task_groups  # behind the limits, so these keep their places
        self.groups: tuple[AnyGroup, ...] = (*limits, *task_groups)
        self.rates = rates_of(limits)
        self.has_gauge_limit = any(rate.window is WindowKind.NOW for rate in self.rates.limits)
        self.renew_at_ms = 0
        self.edges: tuple[Edges, ...] = ()
        self.plan = NO_PLAN
        self.left: list[int] | None = None  # of each dimension, as last seen
        self.left_edges: tuple[Edges, ...] = ()

    def at(self, now_ms: int, epoch: int) -> Plan:
        """What its requests touch. It names two windows, so the store's clock chooses."""
        if now_ms >= self.renew_at_ms or epoch != self.plan.epoch:
            self.renew(now_ms, epoch)
        return self.plan

    def renew(self, now_ms: int, epoch: int) -> None:
        """Name the windows that are open at `now_ms`: the store said that ours are over."""
        limits = [group for group in self.groups if not isinstance(group, TaskGroup)]
        of_tasks = ((g.start_ms, g.end_ms, 2 * g.end_ms) for g in self.task_groups)
        self.edges = (*group_edges(limits, self.tenant.timezone, now_ms), *of_tasks)
        self.plan = Plan(
            self.tenant.id, self.groups, self.edges, bucket=self.tenant.bucket, epoch=epoch
        )
        self.renew_at_ms = min((end for _, end, _ in self.edges if end), default=0) + EDGE_SLACK_MS

    def needs(self, amounts: tuple[int, ...]) -> list[Need]:
        """Its limited counters in the present windows, with what was left when last seen."""
        seen = self.left if self.left_edges == self.edges else None
        needs: list[Need] = []
        place = 0
        for group, (start, _, _) in zip(self.groups, self.edges, strict=True):
            suffix = suffix_of(self.tenant.id, group, start)
            for dim, limit in group.dims:
                if limit >= 0:
                    left = limit if seen is None else seen[place]
                    amount = amounts[AMOUNT_ORDER.index(dim)]
                    needs.append(Need((suffix, dim.value), amount, left))
                place += 1
        return needs
