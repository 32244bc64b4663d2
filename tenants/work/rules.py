"""What a task came to: duration, progress, loops, and what a success costs."""

from dataclasses import dataclass

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


def step_of(text: str) -> tuple[int, int] | None:
    """`k` and `n` of a step written `k/n`; None for any other name."""
    done, slash, whole = text.partition("/")
    if not slash or not (done.isascii() and done.isdigit() and whole.isascii() and whole.isdigit()):
        return None
    return (int(done), int(whole)) if len(done) <= 6 and len(whole) <= 6 else None
