"""What a task came to: duration, progress, loops, and what a success costs."""

from dataclasses import dataclass

from routing.contracts.enums import TaskScope
from routing.contracts.snapshot import TaskCaps

LOOP_REPEATS = 3  # the same step on the same model so often is a loop (decision core, section 6)


@dataclass(frozen=True, slots=True)
class Outcomes:
    """Tasks whose outcome was reported in a period, and what all of them took.

    Failed tasks count into the cost: a success pays for the attempts before it.
    """

    succeeded: int = 0
    failed: int = 0
    spend_nanousd: int = 0

    @property
    def ended(self) -> int:
        """Tasks that reported an outcome."""
        return self.succeeded + self.failed

    @property
    def success_nanousd(self) -> int | None:
        """Cost per successful task, rounded up to the nano-dollar; None without a success."""
        return -(-self.spend_nanousd // self.succeeded) if self.succeeded else None

    @property
    def success_ratio(self) -> float | None:
        """Share of ended tasks that succeeded; None when none ended."""
        return self.succeeded / self.ended if self.ended else None


def work_units(uncached_tokens: int, cached_tokens: int, output_tokens: int) -> float:
    """Engine work of a request in work units (decision core, section 4: 1, 0.1 and 2 a token)."""
    return uncached_tokens + 0.1 * cached_tokens + 2 * output_tokens


@dataclass(frozen=True, slots=True)
class CapRow:
    """One cap of a live task in words: what it bounds, used, held by running calls, the cap."""

    name: str
    unit: str
    used: int
    held: int | None
    cap: int | None
    used_ratio: float | None
    is_money: bool = False


def cap_rows(
    caps: TaskCaps,
    *,
    steps: tuple[int, int],
    spend_nanousd: tuple[int, int],
    lasted_s: int,
) -> list[CapRow]:
    """Steps, spend and time of a task; pairs are used and held. A loop has no amount to show."""
    return [
        _cap_row("Steps", "calls", steps, caps.max_steps),
        _cap_row("Spend", "USD", spend_nanousd, caps.max_spend_nanousd, is_money=True),
        _cap_row("Time since its first call", "s", (lasted_s, None), caps.max_wall_s),
    ]


def _cap_row(
    name: str,
    unit: str,
    taken: tuple[int, int | None],
    cap: int | None,
    *,
    is_money: bool = False,
) -> CapRow:
    used, held = taken
    ratio = None if cap is None else min(1.0, (used + (held or 0)) / cap)
    return CapRow(name, unit, used, held, cap, ratio, is_money)


_CAP_WORDS = {
    "task_steps": "steps",
    "task_spend": "spend",
    "task_wall": "time",
    "task_repeats": "a loop",
}


def cap_words(limit: str, scope: str) -> str:
    """What stopped a task, such as `spend of its parent task`."""
    words = _CAP_WORDS.get(limit, limit.replace("_", " "))
    return f"{words} of its parent task" if scope == TaskScope.PARENT else words


def step_of(text: str) -> tuple[int, int] | None:
    """`k` and `n` of a step written `k/n`; None for any other name."""
    done, slash, whole = text.partition("/")
    if not slash or not (done.isascii() and done.isdigit() and whole.isascii() and whole.isdigit()):
        return None
    return (int(done), int(whole)) if len(done) <= 6 and len(whole) <= 6 else None
