"""What the supervisor makes of silence, and of processes whose parent died. No I/O here.

A ready process is asked every `LIVE_EVERY_S` whether it still answers. A hung one is not dead, so
nobody else would start it again.
"""

from collections.abc import Container, Iterable
from dataclasses import dataclass, field

from console.supervisor.proc import Identity
from console.supervisor.program import Child

LIVE_EVERY_S = 5.0
SILENT_AFTER = 2  # unanswered questions in a row, then it is shown as silent
RESTART_SILENT_AFTER_S = 30.0  # ten times what a full garbage collection or a page-in takes
START_LIMIT_S = 60.0  # a restart that neither ends nor answers for so long hangs
STEP_S = 1.0  # in one round; a clock that is only slewed gains milliseconds
STRAY_AFTER_S = 10.0  # a replica is on record long before


def note_answer(child: Child, answer: bool | None, now_s: float) -> None:
    """Count an answer, or that there was none. None (it cannot be told now) counts as neither."""
    if answer is None:
        return
    if answer:
        child.silent_since_s, child.silent_count = None, 0
        return
    child.silent_count += 1
    if child.silent_since_s is None:
        child.silent_since_s = now_s


def is_silent(child: Child) -> bool:
    """Whether it is to be shown as silent."""
    return child.silent_count >= SILENT_AFTER


def silent_too_long_s(child: Child, now_s: float, limit_s: float) -> float | None:
    """How long it has been silent, once it is to be ended for that; `limit_s` 0: never.

    Questions are counted as well as time: a supervisor that was stopped itself blames nobody.
    """
    if child.silent_since_s is None or not child.program.restarts_silent or limit_s <= 0:
        return None
    silent_s = now_s - child.silent_since_s
    is_over = silent_s >= limit_s and child.silent_count * LIVE_EVERY_S >= limit_s
    return silent_s if is_over else None


def hangs_at_start(child: Child, now_s: float) -> bool:
    """Whether a restarted one is to be asked for an answer of any kind, and ended without one.

    The first start has a limit of its own, and then everything stops.
    """
    is_late = now_s - child.started_s >= START_LIMIT_S
    return is_late and child.was_ready and child.program.restarts_silent


@dataclass(slots=True)
class ClockSteps:
    """Steps of the machine's wall clock, seen against one that runs on through them.

    `by_s` is the last one (negative: set back), seen at `at` Unix seconds by the clock after it.
    """

    by_s: float | None = None
    at: float = 0.0
    _offset_s: float | None = None

    def note(self, wall_s: float, steady_s: float) -> bool:
        """Compare once a round; whether there was a step since the last one."""
        offset_s, before_s = wall_s - steady_s, self._offset_s
        self._offset_s = offset_s
        if before_s is None or abs(offset_s - before_s) < STEP_S:
            return False
        self.by_s, self.at = round(offset_s - before_s, 1), wall_s
        return True


@dataclass(slots=True)
class Strays:
    """Adopted processes that no record names: their parent died while starting them.

    Replicas outlive the worker that started them; what no record names would serve nobody and hold
    its memory for ever.
    """

    next_s: float = 0.0
    _since_s: dict[Identity, float] = field(default_factory=dict)

    def over(
        self, adopted: Iterable[Identity], kept: Container[Identity], now_s: float
    ) -> list[Identity]:
        """Those seen for longer than a parent needs to put its child on record."""
        self.next_s = now_s + LIVE_EVERY_S
        self._since_s = {
            stray: self._since_s.get(stray, now_s) for stray in adopted if stray not in kept
        }
        return [s for s, since_s in self._since_s.items() if now_s - since_s >= STRAY_AFTER_S]
