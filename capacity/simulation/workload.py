"""What arrives: lengths from distributions, times from Poisson or bursty processes, sessions.

A workload is an iterator of arrivals in order of time, made as it is read: a day of them takes no
more memory than a minute. Everything follows from the seed.
"""

import heapq
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Protocol

from capacity.simulation.chance import Chance
from routing.contracts.enums import WorkClass

_SESSION_BITS = 20  # of a block's hash: a session's blocks are numbered below that


@dataclass(slots=True)
class Arrival:
    """One call of a client.

    `hashes` are chained hashes of whole engine blocks (never shared between tenants), `max_tokens`
    the bound that the caller states (0: its output), `session` who is told when it has ended.
    """

    at_s: float
    input_tokens: int
    output_tokens: int
    tenant: str = "t"
    work_class: WorkClass = WorkClass.STANDARD
    max_tokens: int = 0
    hashes: tuple[int, ...] = ()
    session: "Session | None" = None


class Session(Protocol):
    """Whoever sends its next call only after the last one's end."""

    def next_after(self, end_s: float) -> list[Arrival]:
        """What it sends now that one of its calls has ended; nothing after the last."""


class Lengths(Protocol):
    """Draws a token count, at least 1."""

    def __call__(self, chance: Chance) -> int:
        """One draw."""


def fixed(tokens: int) -> Lengths:
    """Always the same."""
    return lambda chance: tokens


def exponential(mean: float, most: int = 1 << 20) -> Lengths:
    """Exponential of a mean, cut at `most`."""
    return lambda chance: min(most, max(1, round(chance.exponential(mean))))


def lognormal(mean: float, cv: float, most: int = 1 << 20) -> Lengths:
    """Lognormal of a mean and a coefficient of variation, cut at `most`."""
    return lambda chance: min(most, max(1, round(chance.lognormal(mean, cv))))


def among(values: tuple[int, ...]) -> Lengths:
    """One of the observed values, each as likely."""
    return lambda chance: values[chance.below(len(values))]


@dataclass(frozen=True, slots=True)
class Phase:
    """A stretch of time in which a stream has one rate and one mix of lengths.

    `cv` is the coefficient of variation of the time between arrivals: 1 Poisson, above bursty.
    """

    from_s: float
    until_s: float
    rate_per_s: float
    input_tokens: Lengths
    output_tokens: Lengths
    cv: float = 1.0


def stream(
    phases: Iterable[Phase],
    seed: int,
    *,
    tenant: str = "t",
    work_class: WorkClass = WorkClass.STANDARD,
    max_tokens: int = 0,
) -> Iterator[Arrival]:
    """Arrivals of one tenant over phases in order of time; gaps are gamma distributed.

    The first gap of a phase is drawn like the others, so a bursty phase begins with a wait.
    """
    root = Chance(seed).fork(f"{tenant}/{work_class.value}")
    gaps, sizes = root.fork("gaps"), root.fork("sizes")
    for phase in phases:
        if phase.rate_per_s <= 0:
            continue
        gap = _gaps(gaps, 1 / phase.rate_per_s, phase.cv)
        at_s = phase.from_s + gap()
        while at_s < phase.until_s:
            yield Arrival(
                at_s,
                phase.input_tokens(sizes),
                phase.output_tokens(sizes),
                tenant,
                work_class,
                max_tokens,
            )
            at_s += gap()


def _gaps(chance: Chance, mean_s: float, cv: float) -> Callable[[], float]:
    if cv == 1.0:
        return lambda: chance.exponential(mean_s)
    if cv <= 0.0:
        return lambda: mean_s
    shape = 1 / (cv * cv)
    return lambda: chance.gamma(shape) * mean_s / shape


def merged(*streams: Iterable[Arrival]) -> Iterator[Arrival]:
    """Streams as one, in order of time; at one instant in the order given."""
    return heapq.merge(*streams, key=lambda arrival: arrival.at_s)


@dataclass(slots=True)
class Chat:
    """A conversation: each turn's prompt is everything before it and something new.

    `first_tokens` and `growth_tokens` are the prompt of the first turn and what each turn adds (its
    answer included); `think_s` the mean pause after an answer.
    """

    number: int
    chance: Chance
    turns: int
    first_tokens: int
    growth_tokens: int
    output_tokens: int
    think_s: float
    block_tokens: int = 16
    tenant: str = "t"
    work_class: WorkClass = WorkClass.STANDARD
    _done: int = field(default=0)

    def next_after(self, end_s: float) -> list[Arrival]:
        """The next turn, after an exponential pause."""
        if self._done >= self.turns:
            return []
        prompt = self.first_tokens + self._done * self.growth_tokens
        self._done += 1
        first = self.number << _SESSION_BITS
        blocks = (prompt + self.output_tokens) // self.block_tokens
        return [
            Arrival(
                end_s + self.chance.exponential(self.think_s),
                prompt,
                self.output_tokens,
                self.tenant,
                self.work_class,
                hashes=tuple(range(first, first + blocks)),
                session=self,
            )
        ]


@dataclass(slots=True)
class AgentTask:
    """An agent's task: steps one after the other, each `fan_out` calls at once on what is known.

    The next step begins when the last call of one has ended, and its prompt holds their answers.
    """

    number: int
    steps: int
    fan_out: int
    first_tokens: int
    output_tokens: int
    block_tokens: int = 16
    tenant: str = "t"
    work_class: WorkClass = WorkClass.STANDARD
    _step: int = field(default=0)
    _open: int = field(default=0)

    def next_after(self, end_s: float) -> list[Arrival]:
        """A call has ended: the calls of the next step, when it was the last of its own."""
        self._open -= 1
        if self._open > 0 or self._step >= self.steps:
            return []
        prompt = self.first_tokens + self._step * self.fan_out * self.output_tokens
        self._step += 1
        self._open = self.fan_out
        first = self.number << _SESSION_BITS
        hashes = tuple(range(first, first + prompt // self.block_tokens))
        return [
            Arrival(
                end_s,
                prompt,
                self.output_tokens,
                self.tenant,
                self.work_class,
                hashes=hashes,
                session=self,
            )
            for _ in range(self.fan_out)
        ]
