"""A replica whose prompts are computed by one engine and whose answers by another.

As vLLM's proxy for such pools has it: the prefill engine computes the prompt and one token that
nobody sees, the KV moves, and the decode engine computes the last prompt token again and then the
whole answer. A preempted answer is recomputed where it runs.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from capacity.simulation.events import Events
from capacity.simulation.measures import SliceFigures
from capacity.simulation.requests import EngineRequest, Generation, NeverFitsError
from capacity.simulation.scenario import PrefillPart, ReplicaSpec
from capacity.simulation.station import Guest, Load, Station


@dataclass(slots=True)
class _Unseen:
    """The prefill engine's view of a request: its one token is measured for nobody."""

    figures: SliceFigures
    last_s: float = 0.0
    made_tokens: int = 0


@dataclass(slots=True)
class _Stay:
    request: EngineRequest
    guest: Guest
    cached_tokens: int = field(default=0)


class Pair:
    """A station of two engines, to its gateways like any other."""

    def __init__(
        self,
        spec: ReplicaSpec,
        prefill: PrefillPart,
        events: Events,
        first: Callable[[str], None],
        done: Callable[[str, Generation], None],
    ) -> None:
        """`spec.profile` is the decode engine; `first` and `done` get a request's id."""
        self.spec = spec
        self._s_per_token = prefill.transfer_s_per_token
        self._events = events
        self._told_done = done
        self._stays: dict[str, _Stay] = {}
        self._unseen = SliceFigures()
        self._prefill = Station(
            replace(spec, profile=prefill.profile, prefill=None),
            events,
            lambda _request_id: None,
            self._prefilled,
        )
        self._decode = Station(replace(spec, prefill=None), events, first, self._done)

    @property
    def is_lost(self) -> bool:
        """Neither engine answers."""
        return self._prefill.is_lost

    @property
    def is_hung(self) -> bool:
        """It takes requests and answers none."""
        return self._prefill.is_hung

    def load(self) -> Load:
        """Requests of both, those whose KV moves among the waiting; KV of the fuller one."""
        before, after = self._prefill.load(), self._decode.load()
        running = before.running + after.running
        return Load(running, len(self._stays) - running, max(before.kv_ratio, after.kv_ratio))

    def submit(self, request: EngineRequest, guest: Guest) -> None:
        """Queue a request; raises `NeverFitsError` when either engine cannot hold it."""
        if not self._decode.replica.fits(request.prompt_tokens, request.output_tokens):
            raise NeverFitsError(f"request {request.id} needs more KV than {self.spec.id} has")
        self._prefill.submit(replace(request, output_tokens=1), _Unseen(self._unseen))
        self._stays[request.id] = _Stay(request, guest)

    def abort(self, request_id: str) -> None:
        """Its caller left, wherever it is."""
        self._stays.pop(request_id, None)
        self._prefill.abort(request_id)
        self._decode.abort(request_id)

    def crash(self) -> list[str]:
        """Both lose all: ids of what was here, on its way between them too."""
        lost = list(self._stays)
        self._stays.clear()
        self._prefill.crash()
        self._decode.crash()
        return lost

    def hang(self) -> None:
        """Both stop."""
        self._prefill.hang()
        self._decode.hang()

    def slow_down(self, factor: float) -> None:
        """Both take `factor` times their profiles."""
        self._prefill.slow_down(factor)
        self._decode.slow_down(factor)

    def come_back(self) -> None:
        """Both serve again."""
        self._prefill.come_back()
        self._decode.come_back()

    def _prefilled(self, request_id: str, generation: Generation) -> None:
        stay = self._stays[request_id]
        stay.cached_tokens = generation.cached_tokens
        wait_s = stay.request.prompt_tokens * self._s_per_token
        self._events.after(wait_s, self._arrived, request_id, stay)

    def _arrived(self, request_id: str, stay: _Stay) -> None:
        if self._stays.get(request_id) is not stay:  # left or lost on the way
            return
        ready = stay.request.prompt_tokens - 1
        self._decode.submit(replace(stay.request, ready_tokens=ready), stay.guest)

    def _done(self, request_id: str, generation: Generation) -> None:
        generation.cached_tokens = self._stays.pop(request_id).cached_tokens
        self._told_done(request_id, generation)
