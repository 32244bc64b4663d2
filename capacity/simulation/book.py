"""The store's counters in virtual time: reserve, then settle once, by the rules gateways follow.

The rule itself is `routing.decision.admit`; the store's script carries out the same one.
"""

from dataclasses import dataclass, field

from capacity.simulation.scenario import TenantSpec
from routing.contracts.enums import Dimension, WindowKind, WorkClass
from routing.contracts.snapshot import ALL_MODELS, KeyEntry, TenantEntry, bucket_of
from routing.decision.admit import Denial, Position, admit, refusal
from routing.decision.limits import AMOUNT_ORDER, Group, amounts_in_order, groups_for, window_edges
from routing.decision.types import Amounts, Refusal


@dataclass(slots=True)
class _Counter:
    end_ms: int
    at: dict[Dimension, Position] = field(default_factory=dict)


@dataclass(slots=True)
class Held:
    """One reservation: its amounts on each counter that it was made on."""

    amounts: Amounts
    legs: list[tuple[Group, _Counter]]


class Book:
    """Every counter of every tenant; windows that have ended are replaced when next touched."""

    def __init__(self, tenants: tuple[TenantSpec, ...], model: str, start_ms: int) -> None:
        """`start_ms` is the Unix time of second 0."""
        self._start_ms = start_ms
        self._model = model
        self._specs = {tenant.id: tenant for tenant in tenants}
        self._groups: dict[tuple[str, WorkClass], tuple[Group, ...]] = {}
        self._counters: dict[tuple[str, Group], _Counter] = {}

    def reserve(
        self, tenant: str, work_class: WorkClass, amounts: Amounts, now_s: float
    ) -> Held | Refusal:
        """Hold the amounts on every counter, or nothing."""
        now_ms = self._start_ms + int(now_s * 1000)
        groups = self._groups_of(tenant, work_class)
        legs = [(group, self._counter(tenant, group, now_ms)) for group in groups]
        waits = [counter.end_ms - now_ms if counter.end_ms else 0 for _group, counter in legs]
        verdict = admit(groups, [counter.at for _group, counter in legs], amounts, waits)
        if isinstance(verdict, Denial):
            return refusal(groups[verdict.group_index], verdict, amounts)
        _move(legs, amounts, hold=1)
        return Held(amounts, legs)

    def settle(self, held: Held, used: Amounts | None) -> None:
        """End a reservation with what was used; None gives everything back."""
        _move(held.legs, held.amounts, hold=-1)
        if used is not None:
            _move(held.legs, used, hold=0)

    def held_total(self) -> int:
        """What all counters hold now: 0 when nothing runs."""
        return sum(
            position.held for counter in self._counters.values() for position in counter.at.values()
        )

    def _groups_of(self, tenant: str, work_class: WorkClass) -> tuple[Group, ...]:
        groups = self._groups.get((tenant, work_class))
        if groups is None:
            spec = self._specs.get(tenant)
            limits = spec.limits if spec else ()
            entry = TenantEntry(
                tenant, tenant, bucket_of(tenant), "UTC", tenant, (ALL_MODELS,), limits
            )
            key = KeyEntry("key", tenant, "project", "", (ALL_MODELS,))
            groups = groups_for(entry, key, self._model, work_class)
            self._groups[tenant, work_class] = groups
        return groups

    def _counter(self, tenant: str, group: Group, now_ms: int) -> _Counter:
        name = (tenant, group)
        counter = self._counters.get(name)
        if counter is None or (counter.end_ms and counter.end_ms <= now_ms):
            end_ms = 0
            if group.window is not WindowKind.NOW:
                end_ms = window_edges(group.window, "UTC", now_ms, group.anchor_min)[1]
            counter = self._counters[name] = _Counter(end_ms)
        return counter


_NOWHERE = Position()


def _move(legs: list[tuple[Group, _Counter]], amounts: Amounts, *, hold: int) -> None:
    """Add to what is held (`hold` 1 or -1), or to what was used (0; gauges have no use)."""
    need = dict(zip(AMOUNT_ORDER, amounts_in_order(amounts), strict=True))
    for group, counter in legs:
        at = counter.at
        is_gauge = group.window is WindowKind.NOW
        for dimension, _limit in group.dims:
            here = at.get(dimension, _NOWHERE)
            if hold:
                at[dimension] = Position(here.used, here.held + hold * need[dimension])
            elif not is_gauge:
                at[dimension] = Position(here.used + need[dimension], here.held)
