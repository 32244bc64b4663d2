"""One hook at this gateway: asked within a deadline, counted, and left alone while it fails."""

import asyncio
import time
from collections import Counter
from typing import NamedTuple, Protocol

from routing.contracts.hooks import HookEntry, HookReport, HookVerdict
from routing.decision.breaker import Breaker, BreakerRules, Outcome
from routing.gateway.stats import Histogram, bump

MAX_RUNNING = 128  # calls of a hook at once; more wait within their deadlines
RECENT_S = 300.0  # a window of answers; the last two are shown
MAX_ERROR_CHARS = 160
# Late answers count like wrong ones: a hook's deadline is tight, and two in a row are no sign yet.
RULES = BreakerRules(failures=5, hung=5, open_s=5.0, open_max_s=40.0)


class HookError(Exception):
    """A hook did not answer as it should; the words hold nothing of a call."""


class Caller(Protocol):
    """How a hook is asked."""

    problem: str

    async def ask(self, payload: bytes) -> str | None:
        """None to pass, a reason to refuse. Raises `HookError` or `OSError`."""

    def close_idle(self, now_s: float) -> None:
        """Close what has been idle for too long."""

    def close(self) -> None:
        """Let go of everything."""


class Answer(NamedTuple):
    """What became of asking; `wait_s` is when it is worth asking again, None where unknown."""

    verdict: HookVerdict
    reason: str = ""
    wait_s: float | None = None
    taken_s: float = 0.0


class AskedHook:
    """State of one hook; owned by the event loop. Counts stay when what it is changes."""

    def __init__(self, entry: HookEntry, caller: Caller) -> None:
        self.entry = entry
        self.caller = caller
        self.breaker = Breaker(entry.name, RULES)
        self.verdicts: Counter[str] = Counter()
        self.duration = Histogram()
        self._recent: list[dict[int, int]] = [{}, {}]
        self._recent_from_s = time.monotonic()
        self._error = ""
        self._error_at_ms = 0
        self._running = asyncio.Semaphore(MAX_RUNNING)

    def become(self, entry: HookEntry, caller: Caller) -> None:
        """It is somewhere else now: what it did there says nothing of here."""
        self.caller.close()
        self.entry, self.caller = entry, caller
        self.breaker = Breaker(entry.name, RULES)

    async def ask(self, payload: bytes, deadline_s: float, now_ms: int) -> Answer:
        """Ask, or pass it over while it keeps failing. Never raises for what the hook does."""
        started_s = time.monotonic()
        breaker = self.breaker
        is_probe = breaker.wants_probe(started_s)
        if not is_probe and not breaker.allows():
            self.verdicts[HookVerdict.SKIPPED] += 1
            return Answer(HookVerdict.SKIPPED, wait_s=max(0.0, breaker.open_until_s - started_s))
        if is_probe:
            breaker.probe_started()
        outcome = Outcome.HUNG
        try:
            async with asyncio.timeout(deadline_s), self._running:
                reason = await self.caller.ask(payload)
            outcome = Outcome.SUCCESS
        except TimeoutError:
            error = f"no answer within {deadline_s * 1000:,.0f} ms"
        except HookError as failed:
            outcome, error = Outcome.FAILURE, str(failed)
        except OSError as failed:
            outcome, error = Outcome.FAILURE, f"cannot be reached: {_kind(failed)}"
        finally:  # also when the gateway ends: a probe must not seem to run for ever
            ended_s = time.monotonic()
            if is_probe:
                breaker.probe_ended(ended_s, succeeded=outcome is Outcome.SUCCESS)
        breaker.observe(outcome, ended_s)
        self._timed(ended_s - started_s, ended_s)
        if outcome is Outcome.SUCCESS:
            verdict = HookVerdict.PASS if reason is None else HookVerdict.REFUSE
            self.verdicts[verdict] += 1
            return Answer(verdict, reason or "", taken_s=ended_s - started_s)
        self.verdicts[HookVerdict.FAILED] += 1
        self._error, self._error_at_ms = error[:MAX_ERROR_CHARS], now_ms
        return Answer(HookVerdict.FAILED, taken_s=ended_s - started_s)

    def _timed(self, took_s: float, now_s: float) -> None:
        self._turn(now_s)
        self.duration.observe(took_s)
        bump(self._recent[1], took_s)

    def _turn(self, now_s: float) -> None:
        """Begin the next window when its time has come; two that have passed are empty."""
        age_s = now_s - self._recent_from_s
        if age_s >= RECENT_S:
            self._recent = [self._recent[1] if age_s < 2 * RECENT_S else {}, {}]
            self._recent_from_s = now_s

    def report(self, now_s: float) -> HookReport:
        """What the console shows of it."""
        self._turn(now_s)
        older, newer = self._recent
        bins = {index: older.get(index, 0) + newer.get(index, 0) for index in {*older, *newer}}
        return HookReport(
            verdicts=dict(self.verdicts),
            seconds=tuple(sorted(bins.items())),
            breaker=self.breaker.phase.value,
            error=self._error or self.caller.problem,
            error_at_ms=self._error_at_ms,
        )


def _kind(error: OSError) -> str:
    return error.strerror or type(error).__name__
