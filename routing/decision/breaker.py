"""Circuit breaker of an endpoint: closed, open, half-open with a real completion as the probe.

`allows` asks and changes nothing; `observe`, `probe_started` and `probe_ended` record. Time is
monotonic seconds and comes from the caller; jitter is drawn from the endpoint's id.
"""

from dataclasses import dataclass, field
from enum import StrEnum

from routing.decision.draw import draw


class Phase(StrEnum):
    """Whether work may be sent."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


class Outcome(StrEnum):
    """What an endpoint did with a request. A caller's own error is not an outcome."""

    SUCCESS = "success"
    FAILURE = "failure"
    HUNG = "hung"


@dataclass(frozen=True, slots=True)
class BreakerRules:
    """When to open and for how long (seconds)."""

    failures: int = 5
    failure_ratio: float = 0.5
    min_requests: int = 20
    window_s: float = 10.0
    hung: int = 2
    open_s: float = 10.0
    open_max_s: float = 40.0
    jitter_ratio: float = 0.2
    close_after: int = 3
    remember_s: float = 300.0


DEFAULT_RULES = BreakerRules()


@dataclass(slots=True)
class Breaker:
    """State of one endpoint; mutable, owned by its gateway."""

    endpoint_id: str
    rules: BreakerRules = DEFAULT_RULES
    phase: Phase = Phase.CLOSED
    reason: str = ""
    opened_at_s: float = 0.0
    open_until_s: float = 0.0
    is_probing: bool = False
    _consecutive: int = 0
    _hung: int = 0
    _successes: int = 0
    _window_from_s: float = 0.0
    _window_total: int = 0
    _window_failed: int = 0
    _openings: list[float] = field(default_factory=list)

    def allows(self) -> bool:
        """Whether clients' requests may be sent."""
        return self.phase is not Phase.OPEN

    def wants_probe(self, now_s: float) -> bool:
        """Whether it is time to try one real completion."""
        return self.phase is Phase.OPEN and not self.is_probing and now_s >= self.open_until_s

    def probe_started(self) -> None:
        """A probe is under way: no second one until it ends."""
        self.is_probing = True

    def probe_ended(self, now_s: float, *, succeeded: bool) -> None:
        """Half-open after a real completion; open again, for longer, without one."""
        self.is_probing = False
        if self.phase is not Phase.OPEN:
            return
        if succeeded:
            self.phase, self._successes = Phase.HALF_OPEN, 0
        else:
            self._open(now_s, self.reason)

    def observe(self, outcome: Outcome, now_s: float) -> None:
        """Record what a request found."""
        if outcome is Outcome.SUCCESS:
            self._observe_success(now_s)
            return
        self._count(now_s, failed=1)
        self._consecutive += 1
        self._hung = self._hung + 1 if outcome is Outcome.HUNG else 0
        if self.phase is Phase.HALF_OPEN:
            self._open(now_s, outcome.value)
        elif self.phase is Phase.CLOSED and (reason := self._why_open()):
            self._open(now_s, reason)

    def _observe_success(self, now_s: float) -> None:
        self._consecutive = self._hung = 0
        self._count(now_s, failed=0)
        if self.phase is Phase.HALF_OPEN:
            self._successes += 1
            if self._successes >= self.rules.close_after:
                self.phase, self.reason = Phase.CLOSED, ""

    def _count(self, now_s: float, *, failed: int) -> None:
        if now_s - self._window_from_s >= self.rules.window_s:
            self._window_from_s, self._window_total, self._window_failed = now_s, 0, 0
        self._window_total += 1
        self._window_failed += failed

    def _why_open(self) -> str:
        rules = self.rules
        if self._hung >= rules.hung:
            return "hung"
        if self._consecutive >= rules.failures:
            return "failing"
        if self._window_total >= rules.min_requests:
            ratio = self._window_failed / self._window_total
            return "failing" if ratio >= rules.failure_ratio else ""
        return ""

    def _open(self, now_s: float, reason: str) -> None:
        rules = self.rules
        self._openings = [t for t in self._openings if now_s - t < rules.remember_s][-8:]
        base_s = min(rules.open_s * 2 ** len(self._openings), rules.open_max_s)
        spread = draw(self.endpoint_id, len(self._openings), "breaker")
        self._openings.append(now_s)
        self.phase, self.reason = Phase.OPEN, reason
        self.opened_at_s = now_s
        self.open_until_s = now_s + base_s * (1 + rules.jitter_ratio * (2 * spread - 1))
        self._consecutive = self._hung = 0
        self._window_total = self._window_failed = 0
