"""The gateway's own one-token completion: the only thing that half-opens a breaker."""

import asyncio
import logging
import time

from routing.decision.breaker import Breaker
from routing.gateway.asking import ask
from routing.gateway.dialects.failure import is_cut_off
from routing.gateway.dialects.operation import Operation
from routing.gateway.dialects.probes import probe_of
from routing.gateway.dialects.usage import is_answer
from routing.gateway.fleet import Endpoint, Fleet
from routing.gateway.sse import SseScanner

log = logging.getLogger(__name__)

PROBE_S = 5.0  # a healthy engine answers one token in well under a second
MAX_PROBES = 16  # at once


class Prober:
    """Probes every open breaker whose time has come; called each second."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._running: set[asyncio.Task[None]] = set()

    def turn(self, now_s: float) -> None:
        """Start the probes that are due."""
        for endpoint in self._fleet.endpoints.values():
            candidate = endpoint.candidate
            if len(self._running) >= MAX_PROBES:
                return
            model = endpoint.pool.served_model
            self._try(endpoint, candidate.breaker, model, now_s)
            for adapter, breaker in candidate.adapter_breakers.items():
                if candidate.breaker.allows():
                    self._try(endpoint, breaker, adapter, now_s)

    def _try(self, endpoint: Endpoint, breaker: Breaker, model: str, now_s: float) -> None:
        if breaker.wants_probe(now_s) and len(self._running) < MAX_PROBES:
            breaker.probe_started()
            task = asyncio.get_running_loop().create_task(_probe(endpoint, breaker, model))
            self._running.add(task)
            task.add_done_callback(self._running.discard)

    def stop(self) -> None:
        """Give up on running probes."""
        for task in self._running:
            task.cancel()


async def _probe(endpoint: Endpoint, breaker: Breaker, model: str) -> None:
    succeeded = False
    try:
        async with asyncio.timeout(PROBE_S):
            succeeded = await complete_one_token(endpoint, model)
    except (OSError, TimeoutError):
        succeeded = False
    finally:
        now_s = time.monotonic()
        breaker.probe_ended(now_s, succeeded=succeeded)
        if succeeded and breaker is endpoint.candidate.breaker:
            endpoint.recovered(now_s)
    log.info("probe of %s: %s", breaker.endpoint_id, "answers" if succeeded else "no answer")


async def complete_one_token(endpoint: Endpoint, model: str) -> bool:
    """Whether a real completion succeeds. Raises `OSError` when it cannot be sent."""
    operation, body = probe_of(model, endpoint.capabilities)
    answer = await ask(endpoint, b"POST", operation.path, body)
    return answer is not None and _is_completion(answer, operation)


def _is_completion(body: bytes, operation: Operation) -> bool:
    """A whole answer, or the stream of one (an upstream that only streams is healthy too)."""
    if is_answer(body):
        return not operation.generates or not (operation.is_cut_off or is_cut_off)(body)
    scanner = SseScanner(keep_usage=True, look=operation.look)
    scanner.feed(body)
    scanner.close()
    return scanner.fault is None and scanner.tokens > 0 and scanner.is_complete
