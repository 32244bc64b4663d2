"""A replica in virtual time: its scheduler's steps as events, and what each hands to whom.

Steps that only decode are told at once (`leap`) and cut where something arrives or leaves, so an
event costs what its batch has, not what its tokens are.
"""

from collections.abc import Callable
from typing import NamedTuple, Protocol

from capacity.simulation.engine import Replica
from capacity.simulation.events import Events
from capacity.simulation.leap import Leap
from capacity.simulation.measures import SliceFigures, growing_bins
from capacity.simulation.requests import EngineRequest, Generation, StepResult
from capacity.simulation.scenario import ReplicaSpec


class Guest(Protocol):
    """A request as the station sees it."""

    figures: SliceFigures
    last_s: float
    made_tokens: int


class Load(NamedTuple):
    """What a replica reports: requests in its batch and outside it, and its share of KV in use."""

    running: int
    waiting: int
    kv_ratio: float


class Station:
    """One replica. `first` and `done` are called when an answer has its first and last token."""

    def __init__(
        self,
        spec: ReplicaSpec,
        events: Events,
        first: Callable[[str], None],
        done: Callable[[str, Generation], None],
    ) -> None:
        """`first` and `done` get a request's id."""
        self.spec = spec
        self.replica = Replica(spec.profile)
        self.guests: dict[str, Guest] = {}
        self.is_lost = False
        self.is_hung = False
        self._events = events
        self._first = first
        self._done = done
        self._leap: Leap | None = None
        self._leap_steps = 0
        self._turn = 0  # of what is planned: an event of an older one is void
        self._is_busy = False

    def load(self) -> Load:
        """As a scrape would see it."""
        replica = self.replica
        return Load(replica.running_count, replica.waiting_count, replica.kv_usage_ratio)

    def submit(self, request: EngineRequest, guest: Guest) -> None:
        """Queue a request; raises `NeverFitsError`."""
        self.replica.submit(request, self._events.now_s).guest = guest
        self.guests[request.id] = guest
        self._cut_leap()
        self._go_on()

    def abort(self, request_id: str) -> None:
        """Its caller left: blocks are free for the next step."""
        guest = self.guests.pop(request_id, None)
        if guest is None:
            return
        if self._leap is not None:
            guest.made_tokens += self._leap.begun_by(self._events.now_s) - 1
        self._cut_leap()
        self.replica.abort(request_id)
        self._go_on()

    def crash(self) -> list[str]:
        """All is lost, the cache too: ids of what was here."""
        lost = list(self.guests)
        self.guests.clear()
        self.replica = Replica(self.replica.profile)
        self._turn += 1
        self._leap, self._is_busy, self.is_lost = None, False, True
        return lost

    def hang(self) -> None:
        """It still takes requests and answers none."""
        self.is_hung = True
        self._turn += 1
        self._leap, self._is_busy = None, False

    def slow_down(self, factor: float) -> None:
        """Steps from the next one on take `factor` times the profile's."""
        self._cut_leap()
        self.replica.set_times(self.spec.profile.times.scaled(factor))

    def come_back(self) -> None:
        """Serves again; an engine that was lost begins empty."""
        self.is_lost = self.is_hung = False
        self._go_on()

    def _go_on(self) -> None:
        if not self._is_busy and not self.is_hung:
            self._plan()

    def _plan(self) -> None:
        now_s = self._events.now_s
        leap = self.replica.leap(now_s)
        if leap is not None:
            self._is_busy = True
            self._leap, self._leap_steps = leap, leap.steps
            self._events.at(leap.end_s(leap.steps), self._leapt, self._turn)
            return
        result = self.replica.step(now_s)
        self._is_busy = result is not None
        if result is not None:
            self._events.at(result.end_s, self._stepped, self._turn, result)

    def _cut_leap(self) -> None:
        """End the leap with the step that is under way: the next one sees what has changed."""
        leap = self._leap
        if leap is None:
            return
        steps = leap.begun_by(self._events.now_s)
        if steps < self._leap_steps:
            self._leap_steps = steps
            self._turn += 1
            self._events.at(leap.end_s(steps), self._leapt, self._turn)

    def _stepped(self, turn: int, result: StepResult) -> None:
        if turn != self._turn:
            return
        end_s, guests = self._events.now_s, self.guests
        gaps: dict[tuple[SliceFigures, float], int] = {}  # most are alike
        for one in result.emitted:
            request_id = one.request.id
            guest = guests.get(request_id)
            if guest is None:
                continue
            if guest.made_tokens:
                gap = (guest.figures, guest.last_s)
                gaps[gap] = gaps.get(gap, 0) + 1
                guest.last_s = end_s
                guest.made_tokens += 1
            else:
                guest.last_s, guest.made_tokens = end_s, 1
                self._first(request_id)
            if one.finish is not None:
                guests.pop(request_id, None)
                self._done(request_id, one)
        for (figures, last_s), count in gaps.items():
            figures.itl.add(end_s - last_s, count)
        self._plan()

    def _leapt(self, turn: int) -> None:
        leap, steps = self._leap, self._leap_steps
        if turn != self._turn or leap is None:
            return
        self._leap = None
        end_s = self._events.now_s
        ended = []
        counts: dict[SliceFigures, int] = {}
        for one in self.replica.commit(leap, steps):
            guest: Guest = one.guest
            guest.made_tokens += steps
            guest.last_s = end_s
            figures = guest.figures
            counts[figures] = counts.get(figures, 0) + 1
            if one.finish is not None:
                ended.append(one)
        gaps = growing_bins(leap.first_s, leap.growth_s, steps)
        sum_s = leap.end_s(steps) - leap.start_s
        for figures, count in counts.items():
            pieces = [(index, times * count) for index, times in gaps]
            figures.itl.add_bins(pieces, sum_s * count, steps * count)
        for one in ended:
            self.guests.pop(one.request.id, None)
            self._done(one.request.id, one)
        self._plan()
