"""The store's counters in virtual time: reserve, then settle once, by the rules gateways follow.

The rule itself is `routing.decision.admit`; the store's script carries out the same one.
"""

from dataclasses import dataclass

from capacity.simulation.scenario import TenantSpec
from routing.contracts.enums import WindowKind, WorkClass
from routing.contracts.snapshot import ALL_MODELS, KeyEntry, TenantEntry, bucket_of
from routing.decision.admit import Denial, admit, refusal
from routing.decision.limits import AMOUNT_ORDER, Group, amounts_in_order, groups_for, window_edges
from routing.decision.types import Amounts, Refusal


@dataclass(slots=True)
class _Tally:
    used: int = 0
    held: int = 0


class _Counter:
    """Sums of one group in one window; `tallies` have the place of their amount."""

    __slots__ = ("at", "end_ms", "is_gauge", "tallies")

    def __init__(self, group: Group, end_ms: int) -> None:
        self.end_ms = end_ms
        self.is_gauge = group.window is WindowKind.NOW
        self.at = {dimension: _Tally() for dimension, _limit in group.dims}
        self.tallies = [
            (tally, AMOUNT_ORDER.index(dimension)) for dimension, tally in self.at.items()
        ]


class _Line:
    """One group of one tenant, and the counter of its window."""

    __slots__ = ("counter", "group")

    def __init__(self, group: Group) -> None:
        self.group = group
        self.counter = _Counter(group, 1)  # ended long ago

    def at(self, now_ms: int) -> _Counter:
        """The counter of this moment's window."""
        counter = self.counter
        if counter.end_ms and counter.end_ms <= now_ms:
            end_ms, group = 0, self.group
            if group.window is not WindowKind.NOW:
                end_ms = window_edges(group.window, "UTC", now_ms, group.anchor_min)[1]
            self.counter = counter = _Counter(group, end_ms)
        return counter


@dataclass(slots=True)
class Held:
    """One reservation: its amounts, and each counter that it was made on."""

    amounts: Amounts
    legs: list[_Counter]


class Book:
    """Every counter of every tenant; windows that have ended are replaced when next touched."""

    def __init__(self, tenants: tuple[TenantSpec, ...], model: str, start_ms: int) -> None:
        """`start_ms` is the Unix time of second 0."""
        self._start_ms = start_ms
        self._model = model
        self._specs = {tenant.id: tenant for tenant in tenants}
        self._groups: dict[tuple[str, WorkClass], tuple[tuple[Group, ...], list[_Line]]] = {}
        self._lines: dict[tuple[str, Group], _Line] = {}

    def reserve(
        self, tenant: str, work_class: WorkClass, amounts: Amounts, now_s: float
    ) -> Held | Refusal:
        """Hold the amounts on every counter, or nothing."""
        now_ms = self._start_ms + int(now_s * 1000)
        groups, lines = self._groups_of(tenant, work_class)
        legs = [line.at(now_ms) for line in lines]
        waits = [counter.end_ms - now_ms if counter.end_ms else 0 for counter in legs]
        verdict = admit(groups, [counter.at for counter in legs], amounts, waits)
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
            tally.held for line in self._lines.values() for tally in line.counter.at.values()
        )

    def _groups_of(
        self, tenant: str, work_class: WorkClass
    ) -> tuple[tuple[Group, ...], list[_Line]]:
        found = self._groups.get((tenant, work_class))
        if found is None:
            spec = self._specs.get(tenant)
            limits = spec.limits if spec else ()
            entry = TenantEntry(
                tenant, tenant, bucket_of(tenant), "UTC", tenant, (ALL_MODELS,), limits
            )
            key = KeyEntry("key", tenant, "project", "", (ALL_MODELS,))
            groups = groups_for(entry, key, self._model, work_class)
            lines = [self._lines.setdefault((tenant, group), _Line(group)) for group in groups]
            found = self._groups[tenant, work_class] = (groups, lines)
        return found


def _move(legs: list[_Counter], amounts: Amounts, *, hold: int) -> None:
    """Add to what is held (`hold` 1 or -1), or to what was used (0; gauges have no use)."""
    need = amounts_in_order(amounts)
    for counter in legs:
        if hold:
            for tally, place in counter.tallies:
                tally.held += hold * need[place]
        elif not counter.is_gauge:
            for tally, place in counter.tallies:
                tally.used += need[place]
