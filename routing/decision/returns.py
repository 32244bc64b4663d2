"""When refused callers are told to come back, so that those who do are admitted.

A window has room for its limit and no more: when that many callers were told to come at its start,
the next ones are told the window after it. A concurrency limit frees its room bit by bit: callers
are spread over the time that its running requests take. Only callers that were told are counted;
fresh ones may take some of the room, but arrive all over the window.
"""

from dataclasses import dataclass
from typing import Final

from routing.contracts.enums import WindowKind
from routing.decision.limits import window_edges

WINDOWS_AHEAD: Final = 3  # promised at once; for a minute's limit SDKs then give up by themselves
TURNS_AHEAD_MS: Final = 120_000
LINES_MAX: Final = 20_000  # limits with callers waiting, about 4 MB; above it all are forgotten
TIMES_MAX: Final = 20_000  # tenants whose durations are known
PRIOR_S: Final = 1.0  # of a running request's duration, until one has ended
SPREAD: Final = 2.0  # mean absolute deviations above the mean: about nine in ten end sooner
WEIGHT: Final = 0.1  # of the newest duration

Name = tuple[str, ...]


@dataclass(slots=True)
class _Line:
    """Who is waiting for a limit: `amount` was promised at `at_ms`."""

    at_ms: int
    amount: int = 0
    ahead: int = 0


class Promises:
    """What was promised on each limit, by this gateway. Instants are the store's Unix ms.

    `gateways` share each limit, so each promises its part of it.
    """

    def __init__(self) -> None:
        """Nobody waits."""
        self.gateways = 1
        self._lines: dict[Name, _Line] = {}
        self._times: dict[str, tuple[float, float]] = {}

    def ended(self, tenant_id: str, took_s: float) -> None:
        """A request of a tenant with a concurrency limit took so long; mean and deviation stay."""
        known = self._times.get(tenant_id)
        if known is None:
            if len(self._times) >= TIMES_MAX:
                self._times.clear()
            self._times[tenant_id] = (took_s, took_s / 2)
            return
        mean, spread = known
        off = took_s - mean
        self._times[tenant_id] = (mean + WEIGHT * off, spread + WEIGHT * (abs(off) - spread))

    def running_s(self, tenant_id: str) -> float:
        """How long nine in ten of the tenant's requests take at most."""
        known = self._times.get(tenant_id)
        return PRIOR_S if known is None else known[0] + SPREAD * known[1]

    def in_window(
        self, name: Name, need: int, limit: int, edges: tuple[WindowKind, str, int], end_ms: int
    ) -> int:
        """Start of the window to return in: the next one (at `end_ms`), or one after it.

        `name` is the limit's own, `edges` its window, zone and anchor; `need` is at most `limit`.
        """
        line, (kind, zone, anchor_min) = self._line(name, end_ms), edges
        if line.at_ms < end_ms:
            line.at_ms, line.amount, line.ahead = end_ms, 0, 0
        if line.amount and (line.amount + need) * self.gateways > limit:
            after_ms = window_edges(kind, zone, line.at_ms, anchor_min)[1]
            if line.ahead + 1 >= WINDOWS_AHEAD:
                return after_ms
            line.at_ms, line.amount, line.ahead = after_ms, 0, line.ahead + 1
        line.amount += need
        return line.at_ms

    def in_turn(self, name: Name, need: int, limit: int, tenant_id: str, now_ms: int) -> int:
        """When room for `need` of a gauge's `limit` will have come free for this caller."""
        running_ms = self.running_s(tenant_id) * 1000
        line = self._line(name, 0)
        gap_ms = running_ms * need * self.gateways / limit
        at_ms = max(int(now_ms + running_ms), int(line.at_ms + gap_ms))
        line.at_ms = min(at_ms, now_ms + TURNS_AHEAD_MS)
        return at_ms

    def _line(self, name: Name, at_ms: int) -> _Line:
        line = self._lines.get(name)
        if line is None:
            if len(self._lines) >= LINES_MAX:
                self._lines.clear()
            line = self._lines[name] = _Line(at_ms)
        return line
