"""Were refused callers admitted when they came back at the time they were told?

A caller is known by its API key and body: the same call again is the same caller. Only this process
knows whom it told, so a return that reaches another process is not counted: the share is a sample.
"""

from collections import Counter
from collections.abc import Callable
from typing import Final, NamedTuple

from routing.contracts.enums import Dimension, WindowKind
from routing.decision.admit import Denial
from routing.decision.limits import AMOUNT_ORDER, Group, amounts_in_order, limit_name
from routing.decision.returns import Promises
from routing.decision.types import Amounts
from routing.store import keys

WAITING_MAX: Final = 20_000  # callers remembered, about 5 MB; above it the longest told go
FORGET_MS: Final = 600_000  # a caller this late came for reasons of its own
HORIZON_MS: Final = 3_600_000  # nobody keeps a call waiting for longer
DELTAS_MAX: Final = 2_000  # counts sent to the store a second; the rest waits for the next one
KEPT_S: Final = 2 * 86_400
_DAY_MS: Final = 86_400_000
ADMITTED: Final = "admitted"
REFUSED: Final = "refused"


class Caller(NamedTuple):
    """Who asks: the tenant, its zone, and what tells one call from another."""

    tenant_id: str
    timezone: str
    key_id: str
    body: bytes

    @property
    def mark(self) -> int:
        """The same for the same call, in this process alone."""
        return hash((self.key_id, self.body))


class _Told(NamedTuple):
    at_ms: int
    limit: str


class Returns:
    """Who was told what by this process. Instants are the store's Unix milliseconds."""

    def __init__(self) -> None:
        """Nobody was told anything."""
        self.promises = Promises()
        self.totals: Counter[tuple[str, str]] = Counter()  # limit, outcome
        self._unsent: Counter[tuple[str, str, str]] = Counter()  # tenant, limit, outcome
        self._waiting: dict[int, _Told] = {}

    @property
    def is_idle(self) -> bool:
        """Nobody is waiting: nothing to look up."""
        return not self._waiting

    def admitted(self, caller: Caller, now_ms: int) -> None:
        """A request was admitted; it may be one that was told to come back."""
        told = self._waiting.pop(caller.mark, None)
        if told is not None:
            self._came_back(caller.tenant_id, told, ADMITTED, now_ms)

    def refused(
        self, caller: Caller, group: Group, denial: Denial, amounts: Amounts, now_ms: int
    ) -> float | None:
        """Seconds until it is to come back; None if waiting does not help."""
        dimension = denial.dimension
        limit = dict(group.dims)[dimension]
        need = dict(zip(AMOUNT_ORDER, amounts_in_order(amounts), strict=True))[dimension]
        if need > limit:
            return None
        name = limit_name(dimension, group.window)
        at_ms = self.tell(
            caller,
            name,
            lambda: self._promise(caller, group, dimension, (need, limit), denial.wait_ms, now_ms),
            now_ms,
        )
        return (at_ms - now_ms) / 1000

    def tell(self, caller: Caller, limit: str, promise: Callable[[], int], now_ms: int) -> int:
        """When a refused caller is to come back: what it was told, or else a new `promise`."""
        mark = caller.mark
        told = self._waiting.get(mark)
        if told is not None and now_ms < told.at_ms and told.limit == limit:
            return told.at_ms  # too early: it keeps its place, and takes no other
        if told is not None:
            del self._waiting[mark]
            self._came_back(caller.tenant_id, told, REFUSED, now_ms)
        at_ms = promise()
        if at_ms - now_ms <= HORIZON_MS:
            if len(self._waiting) >= WAITING_MAX:
                del self._waiting[next(iter(self._waiting))]
            self._waiting[mark] = _Told(at_ms, limit)
        return at_ms

    def _promise(
        self,
        caller: Caller,
        group: Group,
        dimension: Dimension,
        sizes: tuple[int, int],
        wait_ms: int,
        now_ms: int,
    ) -> int:
        window = keys.window_name(group.window, group.anchor_min)
        name = (caller.tenant_id, group.scope, group.subject, window, dimension)
        if group.window is WindowKind.NOW:
            return self.promises.in_turn(name, *sizes, caller.tenant_id, now_ms)
        zone = (group.window, caller.timezone, group.anchor_min)
        return self.promises.in_window(name, *sizes, zone, now_ms + wait_ms)

    def _came_back(self, tenant_id: str, told: _Told, outcome: str, now_ms: int) -> None:
        if told.at_ms <= now_ms <= told.at_ms + FORGET_MS:
            self.totals[told.limit, outcome] += 1
            self._unsent[tenant_id, told.limit, outcome] += 1

    def flush(self, send: Callable[..., None], now_ms: int) -> None:
        """Add what was counted to the store's counts of the (UTC) day, at most `DELTAS_MAX`."""
        day = now_ms // _DAY_MS
        for (tenant_id, limit, outcome), count in list(self._unsent.items())[:DELTAS_MAX]:
            del self._unsent[tenant_id, limit, outcome]
            key = keys.returns_day(tenant_id, day)
            send("HINCRBY", key, f"{limit}|{outcome}", count)
            send("EXPIRE", key, KEPT_S)
