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

from capacity.simulation.kv import BlockPool
from capacity.simulation.leap import Leap
from capacity.simulation.profiles import EngineProfile, StepTimes
from capacity.simulation.requests import (
    Counters,
    EngineRequest,
    Finish,
    Generation,
    NeverFitsError,
    StepResult,
)
from capacity.simulation.tiers import Tiers

_Key = tuple[float, float, int]
_FAR = 1 << 60


class Replica:
    """State of one engine; every method is constant or linear in what it touches."""

    def __init__(self, profile: EngineProfile, *, by_priority: bool = False) -> None:
        self.profile = profile
        self.by_priority = by_priority
        self.tiers = Tiers(profile.tiers, profile.block_tokens)
        self.blocks = BlockPool(profile.kv_blocks, self.tiers.keep if profile.tiers else None)
        self.counters = Counters()
        self._running: list[Generation] = []
        self._waiting: list[tuple[_Key, Generation]] = []
        self._live: dict[str, Generation] = {}
        self._serial = 0
        self._front = 0
        self._waiting_tokens = 0
        self._load_s = 0.0  # of the step being planned: KV that comes back from a tier

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
        duration_s, self._load_s = duration_s + self._load_s, 0.0
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
        has_edges = False
        for one in running:
            computed, made, request = one.computed_tokens, one.made_tokens, one.request
            if one.total_tokens - computed != 1 or not made:
                return None
            steps = min(steps, request.output_tokens - made)
            context += computed
            if request.block_hashes and computed < len(request.block_hashes) * size:
                has_edges = True
        steps = min(steps, (self.blocks.free_count // decodes) * size)
        if steps < 2:
            return None
        times = self.profile.times
        first_s = times.seconds(0, decodes, context + decodes, 0.0)
        return Leap(now_s, steps, decodes, first_s, times.d_s * decodes, has_edges)

    def commit(self, leap: Leap, steps: int) -> list[Generation]:
        """Take the first `steps` of a leap; everyone in the batch, `finish` set on who ended."""
        emitted, size, taken = self._running, self.profile.block_tokens, 0
        if leap.has_edges:
            self._grow_by_edges(emitted, steps)
        end_s = leap.end_s(steps)
        self.counters.steps += steps
        self.counters.generated_tokens += steps * len(emitted)
        ended = []
        for one in emitted:
            if not leap.has_edges:
                one.computed_tokens = reach = one.computed_tokens + steps
                missing = -(-reach // size) - len(one.blocks) - one.spare_blocks
                if missing > 0:
                    one.spare_blocks += missing
                    taken += missing
            one.made_tokens = made = one.made_tokens + steps
            one.total_tokens += steps
            one.last_token_s = end_s
            if made == one.request.output_tokens:
                ended.append(one)
        self.blocks.take_spare(taken)  # cannot fail: a leap is no longer than its blocks
        for one in ended:
            self._finish(one)
        if ended:
            self._running = [one for one in emitted if one.finish is None]
        return emitted

    def _grow_by_edges(self, batch: list[Generation], steps: int) -> None:
        """Blocks for `steps` tokens each, in order of time: of equal ones the first is found."""
        size = self.profile.block_tokens
        edges: list[tuple[int, int]] = []
        for place, one in enumerate(batch):
            filled = one.computed_tokens % size
            edges += [(at, place) for at in range(size - filled, steps + 1, size)]
            edges += [(at, place) for at in range((size - filled) % size + 1, steps + 1, size)]
        starts = [one.computed_tokens for one in batch]
        for at, place in sorted(edges):
            one = batch[place]
            self._grow(one, starts[place] + at - one.computed_tokens)
            one.computed_tokens = starts[place] + at
        for place, one in enumerate(batch):
            one.computed_tokens = starts[place] + steps

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
        size, hashes = self.profile.block_tokens, generation.request.block_hashes
        reach = generation.computed_tokens + tokens
        missing = -(-reach // size) - len(generation.blocks) - generation.spare_blocks
        if missing > 0:
            if missing > self.blocks.free_count:
                return False
            named = min(missing, len(hashes) - len(generation.blocks))
            if named > 0:
                generation.blocks += self.blocks.take(named)
                missing -= named
            if missing:
                self.blocks.take_spare(missing)
                generation.spare_blocks += missing
        if hashes:
            first, last = generation.computed_tokens // size, reach // size
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
        self.blocks.release(generation.blocks, generation.spare_blocks)
        generation.blocks, generation.spare_blocks = [], 0
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
            if self.profile.tiers:
                self._bring_back(generation)
            if generation.request.ready_tokens and not generation.preemptions:
                self._receive(generation)
            self._enter(generation, now_s)
            wanted = self._chunk(total - generation.computed_tokens, budget)
            self._grow(generation, wanted)  # cannot fail: the whole prompt fits
            generation.planned_tokens = wanted
            budget -= wanted
            admitted.append(generation)

    def _bring_back(self, generation: Generation) -> None:
        """The step in which it enters waits for the blocks of its prefix that the tiers hold."""
        size, hashes = self.profile.block_tokens, generation.request.block_hashes
        most = (generation.total_tokens - 1) // size
        blocks, load_s = self.tiers.find(hashes[len(generation.blocks) : most])
        self._grow(generation, blocks * size)  # cannot fail: the whole prompt fits
        generation.computed_tokens += blocks * size
        self._load_s += load_s

    def _receive(self, generation: Generation) -> None:
        """Take in the KV that came with the request; once preempted, it has to be recomputed."""
        ready = min(generation.request.ready_tokens, generation.total_tokens - 1)
        if ready > generation.computed_tokens:
            self._grow(generation, ready - generation.computed_tokens)  # fits: see `_admit`
            generation.computed_tokens = ready

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
                self._finish(generation)
        if ended:
            self._running = [one for one in self._running if one.finish is None]

    def _finish(self, generation: Generation) -> None:
        generation.finish = generation.request.finish
        del self._live[generation.request.id]
        self._drop_blocks(generation)
