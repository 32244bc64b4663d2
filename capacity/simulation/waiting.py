"""The queue of a simulated gateway, in the order that its policy names."""

from collections.abc import Callable, Mapping

from capacity.simulation.scenario import Order
from routing.decision.fairness import Dlpm, Lines, Queued, Vtc

_ALL = ""  # the one line of first come, first served


class Waiting:
    """Who waits. The decision is `routing.decision.fairness`; this keeps its values by id."""

    def __init__(self, order: Order, weights: Mapping[str, float]) -> None:
        """`weights` of tenants, 1 for others."""
        self._order = order
        self._lines = Lines()
        self._vtc = Vtc(weights)
        self._dlpm = Dlpm(weights)
        self._queued: dict[str, Queued] = {}
        self._sent: dict[str, Queued] = {}

    def __len__(self) -> int:
        return len(self._queued)

    @property
    def is_by_cost(self) -> bool:
        """Whether `next` asks what each head would cost."""
        return self._order is Order.DLPM

    def put(self, request_id: str, tenant: str, work: float, now_s: float, limit_s: float) -> None:
        """Queue a request; it is refused after `limit_s`."""
        line = _ALL if self._order is Order.FCFS else tenant
        one = Queued(request_id, line, work, now_s, now_s + limit_s)
        self._queued[request_id] = one
        if self._order is Order.VTC:
            self._vtc.joined(tenant, self._lines, now_s)
        self._lines.put(one)

    def next(self, now_s: float, cost: Callable[[str], float] | None) -> str | None:
        """Take out who goes next, charged to its tenant; None when nobody waits."""
        if cost is not None:
            chosen = self._dlpm.choose(self._lines, now_s, lambda one: cost(one.request_id))
            if chosen is None:
                return None
            pick, refills = chosen
            self._dlpm.sent(pick.tenant, pick.request.work, refills, self._lines)
        else:
            found = self._vtc.choose(self._lines, now_s)
            if found is None:
                return None
            pick = found
            self._vtc.sent(pick.tenant, pick.request.work)
        one = pick.request
        self._lines.take(one)
        del self._queued[one.request_id]
        self._sent[one.request_id] = one
        return one.request_id

    def drop(self, request_id: str) -> None:
        """It goes away, queued or not."""
        one = self._queued.pop(request_id, None)
        if one is not None:
            self._lines.take(one)
        self.settled(request_id, 0.0)

    def settled(self, request_id: str, used: float) -> None:
        """Correct what its tenant was charged."""
        one = self._sent.pop(request_id, None)
        if one is None:
            return
        rule = self._dlpm if self._order is Order.DLPM else self._vtc
        rule.settled(one.tenant, one.work, used)

    def expired(self, now_s: float) -> list[str]:
        """Take out who has waited for too long."""
        gone = [one.request_id for one in self._lines.expired(now_s)]
        for request_id in gone:
            del self._queued[request_id]
        return gone
