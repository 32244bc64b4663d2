"""The replica in wall time: one task that takes a step, waits its duration, hands out its tokens.

A generation's tokens are only counted here; its caller cuts the text when it writes, so a step
costs one comparison and one wake-up a request, and a caller that is behind writes several tokens at
once.
"""

import asyncio
import contextlib
from dataclasses import replace

from capacity.engine.asks import Ask, AskError
from capacity.engine.config import EngineConfig
from capacity.engine.metrics import EngineMetrics, RequestTimes
from capacity.engine.text import PIECE_BYTES
from capacity.simulation.engine import Replica
from capacity.simulation.requests import Generation, NeverFitsError, StepResult

# A step planned at the last one's end, not at now, keeps the mean step time right although timers
# fire late. Beyond this lag the machine was stalled, and catching up would be a burst of steps.
MAX_CATCH_UP_S = 0.05


class Flight:
    """One answer on its way: how many tokens it has, and how many its caller has written."""

    __slots__ = ("generation", "index", "last_s", "ready_tokens", "text", "written_tokens")

    def __init__(self, generation: Generation, text: str, index: int) -> None:
        self.generation = generation
        self.text = text
        self.index = index
        self.ready_tokens = 0
        self.written_tokens = 0
        self.last_s = 0.0

    @property
    def is_done(self) -> bool:
        """All tokens are ready."""
        return self.ready_tokens == self.generation.request.output_tokens

    def unwritten(self) -> str:
        """Text of the tokens that are ready and not written; marks them written."""
        start, self.written_tokens = self.written_tokens, self.ready_tokens
        return self.text[start * PIECE_BYTES : self.ready_tokens * PIECE_BYTES]


class Call:
    """One HTTP call's flights, and what wakes its writer.

    `is_cut` says that the engine dropped it, `is_left` that its client is gone.
    """

    __slots__ = ("_has_news", "_waiter", "ask", "flights", "id", "is_cut", "is_left", "is_stream")

    def __init__(self, call_id: str, ask: Ask, flights: list[Flight]) -> None:
        self.id = call_id
        self.ask = ask
        self.flights = flights
        self.is_stream = ask.is_stream
        self.is_cut = False
        self.is_left = False
        self._has_news = False
        self._waiter: asyncio.Future[None] | None = None

    @property
    def is_done(self) -> bool:
        """Every answer has all its tokens."""
        return all(flight.is_done for flight in self.flights)

    def wake(self) -> None:
        """Let the writer look again, now or when it next waits."""
        self._has_news = True
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def leave(self) -> None:
        """The client is gone."""
        self.is_left = True
        self.wake()

    async def news(self) -> None:
        """Wait until `wake` was called since the last time. For the call's one writer."""
        if not self._has_news:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        self._has_news = False


class Engine:
    """Owns the replica and its clock."""

    def __init__(self, config: EngineConfig) -> None:
        self.config = config
        self.replica = Replica(config.profile, by_priority=config.by_priority)
        self.metrics = EngineMetrics(
            self.replica,
            config.model,
            config.profile.context_tokens,
            old_names=config.old_metric_names,
        )
        self.is_draining = False
        self._flights: dict[str, tuple[Call, Flight]] = {}
        self._work = asyncio.Event()
        self._idle = asyncio.Event()
        self._serial = 0

    @property
    def live_count(self) -> int:
        """Answers running or waiting."""
        return len(self._flights)

    def set_slow_factor(self, factor: float) -> None:
        """Stretch every later step."""
        self.replica.set_times(self.config.profile.times.scaled(factor))

    def submit(self, call_id: str, ask: Ask, arrived_s: float) -> Call:
        """Queue a call's answers. Raises `AskError` when draining or when the queue is full."""
        self._admit(ask)
        flights: list[Flight] = []
        call = Call(call_id, ask, flights)
        try:
            for index, work in enumerate(ask.works):
                self._serial += 1
                request = replace(work.request, id=f"{call_id}-{self._serial}")
                generation = self.replica.submit(request, arrived_s)
                flight = Flight(generation, work.text, index)
                flights.append(flight)
                self._flights[request.id] = (call, flight)
        except NeverFitsError as error:
            self.abort(call)
            raise AskError(400, str(error)) from error
        self._count_parameters(ask)
        self._work.set()
        return call

    def _admit(self, ask: Ask) -> None:
        if self.is_draining:
            raise AskError(
                500, "cannot schedule new futures after shutdown", kind="InternalServerError"
            )
        config = self.config
        tokens = self.replica.waiting_tokens + ask.prompt_tokens
        full = ""
        if config.max_queued_requests is not None and self.live_count >= config.max_queued_requests:
            full = "max_num_queued_reqs"
        elif config.max_queued_tokens is not None and tokens > config.max_queued_tokens:
            full = "max_num_queued_tokens"
        if full:
            self.metrics.rejections[full].add()
            raise AskError(
                503,
                f"The engine is currently busy ({full} reached). Please try again later.",
                kind="ServiceUnavailableError",
            )

    def _count_parameters(self, ask: Ask) -> None:
        self.metrics.params_n.observe(ask.choices)
        for work in ask.works:
            self.metrics.params_max_tokens.observe(ask.max_tokens)
            self.metrics.request_max_generation.observe(work.request.output_tokens)

    def abort(self, call: Call) -> None:
        """Drop what is left of a call: its blocks are free for the next step."""
        for flight in call.flights:
            request_id = flight.generation.request.id
            self._forget(request_id)
            self.replica.abort(request_id)

    def _forget(self, request_id: str) -> None:
        self._flights.pop(request_id, None)
        if not self._flights:
            self._idle.set()

    def cut_all(self) -> None:
        """Drop every live call; each writer says so to its client."""
        calls = {id(call): call for call, _flight in self._flights.values()}
        for call in calls.values():
            call.is_cut = True
            self.abort(call)
            call.wake()

    async def run(self) -> None:
        """Step until cancelled."""
        loop = asyncio.get_running_loop()
        planned_s = loop.time()
        while True:
            now_s = loop.time()
            if now_s - planned_s > MAX_CATCH_UP_S:
                planned_s = now_s
            result = self.replica.step(planned_s)
            if result is None:
                self._work.clear()
                await self._work.wait()
                planned_s = loop.time()
                continue
            planned_s = result.end_s
            # Always yields, so that callers are served even when the machine is too slow.
            await asyncio.sleep(max(0.0, planned_s - loop.time()))
            self._hand_out(result, loop.time())

    def _hand_out(self, result: StepResult, now_s: float) -> None:
        metrics = self.metrics
        itl = metrics.itl
        prefilled = made = 0
        for generation in result.emitted:
            entry = self._flights.get(generation.request.id)
            if entry is None:  # aborted while the step ran
                continue
            call, flight = entry
            flight.ready_tokens += 1
            made += 1
            if flight.ready_tokens == 1:
                metrics.ttft.observe(now_s - generation.arrived_s)
                prefilled += metrics.prefilled(generation)
            else:
                itl.observe(now_s - flight.last_s)
            flight.last_s = now_s
            if generation.finish is not None:
                self._finish(generation, now_s)
            if call.is_stream or call.is_done:
                call.wake()
        if made:
            metrics.generation_tokens.add(made)
            metrics.iteration_tokens.observe(prefilled + made)

    def _finish(self, generation: Generation, now_s: float) -> None:
        self._forget(generation.request.id)
        arrived_s = generation.arrived_s
        scheduled_s = max(arrived_s, generation.scheduled_s or arrived_s)
        first_s = generation.first_token_s or now_s
        times = RequestTimes(
            e2e_s=now_s - arrived_s,
            queue_s=scheduled_s - arrived_s,
            prefill_s=first_s - scheduled_s,
            decode_s=max(0.0, now_s - first_s),
        )
        self.metrics.finished(generation, times)

    async def drain(self) -> None:
        """Refuse new calls; live ones end, or are cut after the configured time."""
        self.is_draining = True
        if self._flights:
            self._idle.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._idle.wait(), self.config.shutdown_timeout_s)
        self.cut_all()
