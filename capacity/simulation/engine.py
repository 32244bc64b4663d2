"""One replica: vLLM's V1 scheduler over blocks of KV, and how long each step takes.

No clock: `step(now_s)` plans one step that starts at `now_s` and says when it ends, so that the
simulator calls it in virtual time and the bundled engine in wall time. What it mirrors (vLLM
0.32): a token budget a step, running requests first with one token a decode, then waiting ones,
first come first served or by (priority, arrival), prefill in chunks; a request enters only if
blocks for its whole prompt are free; short of blocks the newest running one (by priority: the
largest) is preempted, recomputed later from the front of the queue, and nothing new enters in that
step; prefix hits are whole blocks, at most prompt - 1 tokens.
"""

import heapq
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from capacity.simulation.kv import BlockPool
from capacity.simulation.leap import Leap
from capacity.simulation.profiles import EngineProfile, StepTimes


class NeverFitsError(ValueError):
    """The request needs more KV than the replica has, so it could never be served."""


class Finish(StrEnum):
    """Why a request ended, in vLLM's words."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """What the scheduler needs to know.

    `output_tokens` is how many it will generate (at least 1) and `finish` why it then stops.
    `block_hashes` are chained hashes of its whole blocks from the start of the prompt, and may go
    on into the output: blocks without a hash are never reused. Lower `priority` is sooner.
    """

    id: str
    prompt_tokens: int
    output_tokens: int
    finish: Finish = Finish.LENGTH
    priority: int = 0
    block_hashes: tuple[int, ...] = ()


@dataclass(slots=True, eq=False)
class Generation:
    """A request inside the replica. Callers read it; only the replica writes it.

    Instants are in the caller's seconds; `cached_tokens` is the prefix hit of its first admission.
    """

    request: EngineRequest
    arrived_s: float
    serial: int
    total_tokens: int
    made_tokens: int = 0
    computed_tokens: int = 0
    planned_tokens: int = 0
    cached_tokens: int = 0
    preemptions: int = 0
    is_running: bool = False
    finish: Finish | None = None
    scheduled_s: float | None = None
    first_token_s: float | None = None
    last_token_s: float | None = None
    blocks: list[int] = field(default_factory=list)


class StepResult(NamedTuple):
    """One step.

    `emitted` generations have one more token each (`finish` is set on those that ended with it),
    visible from `end_s` on. `prefill_tokens`, `decodes`, `context_tokens` are P, D, K of the step
    time.
    """

    duration_s: float
    end_s: float
    prefill_tokens: int
    decodes: int
    context_tokens: int
    emitted: list[Generation]
    admitted: list[Generation]
    preempted: int


@dataclass(slots=True)
class Counters:
    """Totals since the replica's start; prefix counters are in tokens, first admissions only."""

    steps: int = 0
    prefix_queries: int = 0
    prefix_hits: int = 0
    preemptions: int = 0
    prefill_tokens: int = 0
    generated_tokens: int = 0


_Key = tuple[float, float, int]
_FAR = 1 << 60


class Replica:
    """State of one engine; every method is constant or linear in what it touches."""

    def __init__(self, profile: EngineProfile, *, by_priority: bool = False) -> None:
        self.profile = profile
        self.by_priority = by_priority
        self.blocks = BlockPool(profile.kv_blocks)
        self.counters = Counters()
        self._running: list[Generation] = []
        self._waiting: list[tuple[_Key, Generation]] = []
        self._live: dict[str, Generation] = {}
        self._serial = 0
        self._front = 0
        self._waiting_tokens = 0

    @property
    def running_count(self) -> int:
        """Requests in the batch."""
        return len(self._running)

    @property
    def waiting_count(self) -> int:
        """Requests not in the batch, preempted ones included."""
        return len(self._live) - len(self._running)

    @property
    def waiting_tokens(self) -> int:
        """Prompt tokens of the waiting requests."""
        return self._waiting_tokens

    @property
    def kv_usage_ratio(self) -> float:
        """Share of the blocks that running requests own."""
        return self.blocks.used_count / self.blocks.capacity

    def fits(self, prompt_tokens: int, output_tokens: int) -> bool:
        """Whether an empty replica could serve this many tokens."""
        room = self.blocks.capacity - self.profile.watermark_blocks
        return self._blocks_for(prompt_tokens + output_tokens) <= room

    def set_times(self, times: StepTimes) -> None:
        """Steps from now on take these times (a calibrated profile, a throttled device)."""
        self.profile = self.profile.with_times(times)

    def submit(self, request: EngineRequest, now_s: float) -> Generation:
        """Queue a request; it is seen by the next step. Raises `NeverFitsError`."""
        if not self.fits(request.prompt_tokens, request.output_tokens):
            raise NeverFitsError(f"request {request.id} needs more KV than {self.profile.name} has")
        self._serial += 1
        generation = Generation(request, now_s, self._serial, total_tokens=request.prompt_tokens)
        self._live[request.id] = generation
        self._enqueue(generation, serial=self._serial)
        return generation

    def abort(self, request_id: str) -> Generation | None:
        """Forget a request and free its blocks; None if it is not here (any more)."""
        generation = self._live.pop(request_id, None)
        if generation is None:
            return None
        generation.finish = Finish.ABORT
        if generation.is_running:
            self._running.remove(generation)
            self._drop_blocks(generation)
        else:  # its heap entry is skipped when it comes up
            self._waiting_tokens -= generation.request.prompt_tokens
        return generation

    def step(self, now_s: float) -> StepResult | None:
        """Plan and account the step that starts at `now_s`; None when there is nothing to do."""
        budget, preempted = self._plan_running()
        while preempted and self._running and budget == self.profile.token_budget:
            # The first in line preempted itself, and nobody behind it was planned. vLLM spends an
            # empty step here; None would say that there is nothing to do.
            budget, more = self._plan_running()
            preempted += more
        admitted: list[Generation] = []
        if not preempted or not self._running:
            self._admit(budget, now_s, admitted)
        prefill, decodes, context, attention, emitted = self._measure()
        if not prefill and not decodes:
            return None
        duration_s = self.profile.times.seconds(prefill, decodes, context, attention)
        end_s = now_s + duration_s
        self._emit(emitted, end_s)
        self.counters.steps += 1
        self.counters.prefill_tokens += prefill
        return StepResult(
            duration_s, end_s, prefill, decodes, context, emitted, admitted, preempted
        )

    def leap(self, now_s: float) -> Leap | None:
        """The decode-only steps from `now_s` on until an answer ends; None if there are not two.

        Nothing changes until `commit`, which takes as many of them as have begun when something
        arrives or leaves. The steps are those that `step` would take one by one.
        """
        running = self._running
        decodes = len(running)
        if not decodes or decodes > self.profile.token_budget or not self._is_head_shut():
            return None
        steps, context, size = _FAR, 0, self.profile.block_tokens
        for one in running:
            if one.total_tokens - one.computed_tokens != 1 or not one.made_tokens:
                return None
            steps = min(steps, one.request.output_tokens - one.made_tokens)
            context += one.computed_tokens
        steps = min(steps, (self.blocks.free_count // decodes) * size)
        if steps < 2:
            return None
        times = self.profile.times
        first_s = times.seconds(0, decodes, context + decodes, 0.0)
        return Leap(now_s, steps, decodes, first_s, times.d_s * decodes)

    def commit(self, leap: Leap, steps: int) -> list[Generation]:
        """Take the first `steps` of a leap; everyone in the batch, `finish` set on who ended."""
        emitted = list(self._running)
        self._grow_all(emitted, steps)
        for one in emitted:
            one.made_tokens += steps - 1
            one.total_tokens += steps - 1
        self.counters.steps += steps
        self.counters.generated_tokens += (steps - 1) * len(emitted)
        self._emit(emitted, leap.end_s(steps))
        return emitted

    def _grow_all(self, batch: list[Generation], steps: int) -> None:
        """Blocks for `steps` tokens each; cannot fail: a leap is no longer than its blocks.

        Edges of hashed blocks are taken in order of time: of equal ones the first is the found one.
        """
        size = self.profile.block_tokens
        edges: list[tuple[int, int]] = []
        for place, one in enumerate(batch):
            filled = one.computed_tokens % size
            if one.request.block_hashes:
                edges += [(at, place) for at in range(size - filled, steps + 1, size)]
                edges += [(at, place) for at in range((size - filled) % size + 1, steps + 1, size)]
            else:
                if not filled or filled + steps >= size:
                    self._grow(one, steps)
                one.computed_tokens += steps
        starts = [one.computed_tokens for one in batch] if edges else []
        for at, place in sorted(edges):
            one = batch[place]
            self._grow(one, starts[place] + at - one.computed_tokens)
            one.computed_tokens = starts[place] + at
        for place, one in enumerate(batch):
            if one.request.block_hashes:
                one.computed_tokens = (starts[place] if edges else one.computed_tokens) + steps

    def _is_head_shut(self) -> bool:
        """Nobody waits, or whoever is first stays out until an answer ends."""
        while self._waiting and self._waiting[0][1].finish is not None:
            heapq.heappop(self._waiting)
        if not self._waiting or len(self._running) >= self.profile.seats:
            return True
        head = self._waiting[0][1]
        if head.request.block_hashes:  # what the others fill may yet let it in
            return False
        room = self.blocks.free_count - self.profile.watermark_blocks
        return self._blocks_for(head.total_tokens) > room

    def _blocks_for(self, tokens: int) -> int:
        return -(-tokens // self.profile.block_tokens)

    def _enqueue(self, generation: Generation, *, serial: int) -> None:
        key: _Key = (0.0, 0.0, serial)
        if self.by_priority:
            key = (generation.request.priority, generation.arrived_s, generation.serial)
        heapq.heappush(self._waiting, (key, generation))
        self._waiting_tokens += generation.request.prompt_tokens

    def _chunk(self, wanted: int, budget: int) -> int:
        cap = self.profile.long_prefill_tokens
        if cap and wanted > cap and len(self._live) > 1:
            wanted = cap
        return min(wanted, budget)

    def _plan_running(self) -> tuple[int, int]:
        """Give each running request its tokens; the budget left, and how many were preempted."""
        budget, size = self.profile.token_budget, self.profile.block_tokens
        preempted = index = 0
        while index < len(self._running) and budget > 0:
            generation = self._running[index]
            computed = generation.computed_tokens
            wanted = generation.total_tokens - computed
            if wanted == 1 and 0 < computed % size < size - 1:  # stays inside its last block
                generation.planned_tokens = 1
                budget -= 1
                index += 1
                continue
            if wanted > 1:
                wanted = self._chunk(wanted, budget)
            while not self._grow(generation, wanted):
                victim = self._victim()
                position = self._running.index(victim)
                budget += victim.planned_tokens
                self._preempt(victim)
                preempted += 1
                if position < index:
                    index -= 1
                if victim is generation:
                    return budget, preempted
            generation.planned_tokens = wanted
            budget -= wanted
            index += 1
        return budget, preempted

    def _grow(self, generation: Generation, tokens: int) -> bool:
        """Own blocks for `tokens` more, and let the full ones be found; False if short."""
        size = self.profile.block_tokens
        reach = generation.computed_tokens + tokens
        missing = -(-reach // size) - len(generation.blocks)
        if missing > 0:
            taken = self.blocks.take(missing)
            if taken is None:
                return False
            generation.blocks += taken
        first, last = generation.computed_tokens // size, reach // size
        hashes = generation.request.block_hashes
        for index in range(first, min(last, len(hashes))):
            self.blocks.remember(generation.blocks[index], hashes[index])
        return True

    def _victim(self) -> Generation:
        if not self.by_priority:
            return self._running[-1]
        return max(self._running, key=lambda one: (one.request.priority, one.arrived_s, one.serial))

    def _preempt(self, generation: Generation) -> None:
        self._running.remove(generation)
        self._drop_blocks(generation)
        generation.preemptions += 1
        self.counters.preemptions += 1
        self._front -= 1
        self._enqueue(generation, serial=self._front)

    def _drop_blocks(self, generation: Generation) -> None:
        self.blocks.release(generation.blocks)
        generation.blocks = []
        generation.computed_tokens = generation.planned_tokens = 0
        generation.is_running = False

    def _admit(self, budget: int, now_s: float, admitted: list[Generation]) -> None:
        size = self.profile.block_tokens
        while budget > 0 and self._waiting and len(self._running) < self.profile.seats:
            generation = self._waiting[0][1]
            if generation.finish is not None:
                heapq.heappop(self._waiting)
                continue
            total = generation.total_tokens
            hits = self.blocks.find(generation.request.block_hashes, (total - 1) // size)
            needed = self._blocks_for(total) - len(hits) + self.blocks.idle_among(hits)
            if needed + self.profile.watermark_blocks > self.blocks.free_count:
                return
            heapq.heappop(self._waiting)
            self.blocks.share(hits)
            generation.blocks = hits
            generation.computed_tokens = len(hits) * size
            self._enter(generation, now_s)
            wanted = self._chunk(total - generation.computed_tokens, budget)
            self._grow(generation, wanted)  # cannot fail: the whole prompt fits
            generation.planned_tokens = wanted
            budget -= wanted
            admitted.append(generation)

    def _enter(self, generation: Generation, now_s: float) -> None:
        generation.is_running = True
        self._running.append(generation)
        self._waiting_tokens -= generation.request.prompt_tokens
        if generation.scheduled_s is None:
            generation.scheduled_s = now_s
            generation.cached_tokens = generation.computed_tokens
            self.counters.prefix_queries += generation.total_tokens
            self.counters.prefix_hits += generation.cached_tokens

    def _measure(self) -> tuple[int, int, int, float, list[Generation]]:
        """P, D, K, A of what is planned, and who gets a token; marks the plan as computed."""
        prefill = decodes = context = 0
        attention = 0.0
        emitted = []
        for generation in self._running:
            planned = generation.planned_tokens
            if not planned:
                continue
            before = generation.computed_tokens
            generation.computed_tokens = after = before + planned
            generation.planned_tokens = 0
            if planned == 1 and generation.made_tokens:
                decodes += 1
                context += after
            else:
                prefill += planned
                attention += planned * (before + planned / 2)
            if after == generation.total_tokens:
                emitted.append(generation)
        return prefill, decodes, context, attention, emitted

    def _emit(self, emitted: list[Generation], end_s: float) -> None:
        self.counters.generated_tokens += len(emitted)
        ended = False
        for generation in emitted:
            generation.made_tokens += 1
            generation.total_tokens += 1
            generation.last_token_s = end_s
            if generation.made_tokens == 1:
                generation.first_token_s = end_s
            if generation.made_tokens == generation.request.output_tokens:
                ended = True
                generation.finish = generation.request.finish
                del self._live[generation.request.id]
                self._drop_blocks(generation)
        if ended:
            self._running = [one for one in self._running if one.finish is None]
