"""Engines that stop, drain, die and come back, with traffic on them."""

import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import httpx
import pytest
import redis

from routing.contracts.endpoint_state import EndpointState
from routing.contracts.enums import ReplicaHealth, RequestStatus
from routing.contracts.pricing import spend_nanousd
from routing.contracts.snapshot import FailurePolicy
from routing.contracts.usage import UsageEvent
from tests.collecting import endpoint, start_collector
from tests.gatewaying import ACME, text_of
from tests.stack import ALPHA, held, policy, publish, usage_events, wait_until
from tests.vllm.conftest import RunningVllm, StartVllm, wait_ready
from tests.vllm.serving import (
    DEADLINES,
    Call,
    chat,
    directly,
    gateway_over,
    load,
    pool_of,
    snapshot_of,
    store_client,
    wait_load,
)

LONG = 3000
KILLED_TOKENS = 1500  # the tiny model takes seconds for them: it is killed at about 200
DRAINED_TOKENS = 3000  # seconds on an idle machine, two minutes on a busy one
ABSURD_PER_S = 100_000.0  # a tiny model on a CPU makes hundreds of tokens a second


@pytest.fixture(scope="module")
def doomed(start_vllm: StartVllm) -> Iterator[dict[str, RunningVllm]]:
    """Engines that tests stop; loaded side by side."""
    # A stream must outlast what is seen of the drain: the slower model.
    kinds = {"drains": ("small", 300), "cuts": ("tiny", 0), "dies": ("tiny", 0)}
    with ExitStack() as running:
        made = {
            name: running.enter_context(
                start_vllm(f"{name}-0", model=model, wait=False, shutdown_timeout_s=drain_s)
            )
            for name, (model, drain_s) in kinds.items()
        }
        for engine in made.values():
            wait_ready(engine)
        yield made


def events(store: "redis.Redis[bytes]", count: int) -> list[UsageEvent]:
    """acme's rows in order of their end, once there are so many and nothing is held."""

    def ready() -> bool:
        return len(usage_events(store, ACME)) >= count and held(store, ACME) == 0

    wait_until(ready, 20, f"{count} rows and nothing held")
    return [event for _, event in usage_events(store, ACME)]


def refuses(engine: RunningVllm) -> bool:
    """Whether it drains: healthy, but takes nothing on."""
    answer = directly(engine).finish()
    return answer.status == 500 and b"after shutdown" in answer.raw


def test_a_draining_engine_ends_its_stream_while_others_take_the_new_requests(
    store: "redis.Redis[bytes]",
    tmp_path: Path,
    doomed: dict[str, RunningVllm],
    tiny_vllm: RunningVllm,
) -> None:
    engine = doomed["drains"]
    snapshot = snapshot_of(pool_of("p1", engine), pool_of("p2", tiny_vllm))
    with gateway_over(tmp_path, snapshot) as gateway:
        live = chat(gateway, "live", stream=True, max_tokens=DRAINED_TOKENS)
        live.wait_chunks(5)
        engine.process.send_signal(signal.SIGTERM)
        wait_until(lambda: refuses(engine), 20, "it refuses new work")
        health = httpx.get(f"{engine.url}/health", timeout=10, trust_env=False)
        assert health.status_code == 200, "its health says nothing of it"
        assert not live.has_ended.is_set(), "the stream goes on"
        for is_stream in (True, False, True):
            assert chat(gateway, "new", stream=is_stream).finish().status == 200
        live.finish()
        assert live.events[-1] == "[DONE]"
        (old,) = (one for one in events(store, 4) if one.pool == "p1")
        new = [one for one in events(store, 4) if one.pool == "p2"]
        assert [one.attempts for one in new] == [2, 1, 1], "asked once, then left alone"
        assert (old.pool, old.status, old.output_tokens) == ("p1", RequestStatus.OK, DRAINED_TOKENS)
        assert engine.process.wait(30) == 0


def test_an_engine_that_cuts_its_stream_gives_a_typed_error_and_a_bill_for_what_was_sent(
    store: "redis.Redis[bytes]",
    tmp_path: Path,
    doomed: dict[str, RunningVllm],
    tiny_vllm: RunningVllm,
) -> None:
    engine = doomed["cuts"]
    snapshot = snapshot_of(pool_of("p1", engine), pool_of("p2", tiny_vllm))
    with gateway_over(tmp_path, snapshot) as gateway:
        live = chat(gateway, "live", stream=True, max_tokens=LONG)
        live.wait_chunks(20)
        engine.process.send_signal(signal.SIGTERM)
        live.finish()
        assert live.status == 200
        *_, last = live.events
        code = last["error"]["code"]
        # Mostly it says that it gave up; if its worker ends first it says nothing, and the limit
        # between two tokens ends the stream.
        assert code in ("upstream_error", "upstream_timeout")
        assert f"after {live.chunks} output tokens" in last["error"]["message"]
        assert "[DONE]" not in live.events
        assert load(tiny_vllm) == (0, 0), "nothing is replayed"
        (event,) = events(store, 1)
        assert event.status in (RequestStatus.FAILED, RequestStatus.INCOMPLETE)
        assert event.error_code == code
        assert (event.attempts, event.output_tokens) == (1, live.chunks)
        told = (event.input_tokens, event.cached_tokens, event.output_tokens)
        assert event.spend_nanousd == spend_nanousd(ALPHA, *told) > 0


def core_of(engine: RunningVllm) -> int:
    """Pid of its EngineCore process."""
    group = os.getpgid(engine.process.pid)
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            is_core = b"EngineCore" in (entry / "cmdline").read_bytes()
            if is_core and os.getpgid(int(entry.name)) == group:
                return int(entry.name)
        except OSError:
            continue
    raise AssertionError("no EngineCore")


def pairs_of(flat: Any) -> dict[str, int]:
    """`[name, amount, name, amount]` by name."""
    return dict(zip(flat[::2], flat[1::2], strict=True))


def goes_on_when_killed(
    store: "redis.Redis[bytes]", gateway: Any, engine: RunningVllm, other: RunningVllm
) -> None:
    """A stream of `engine`, killed at token 200, says what `other` alone would have said.

    Output is counted by events while no replica reports: one that sent several tokens in an event
    leaves the rest as much longer, and these tokens count as input.
    """
    greedy: dict[str, Any] = {"max_tokens": KILLED_TOKENS, "temperature": 0}
    live = chat(gateway, "live", stream=True, **greedy)
    live.wait_chunks(200)
    os.kill(core_of(engine), signal.SIGKILL)
    live.finish()
    assert live.events[-1] == "[DONE]", live.raw[-300:]
    whole = directly(other, "live", **greedy).finish().json
    text, said = text_of(live.events), whole["choices"][0]["message"]["content"]
    assert text.startswith(said), "no character is missing or repeated"
    extra = len(text[len(said) :].split())
    assert extra < 200, "at most one more for each that was sent"
    carried = [event for _, event in usage_events(store, ACME)][-1]
    assert (carried.status, carried.attempts) == (RequestStatus.OK, 2)
    assert (carried.pool, carried.output_tokens) == ("p2", KILLED_TOKENS)
    holds: dict[str, int] = {}
    for *_, amounts in carried.legs:
        holds |= pairs_of(amounts)
    told = whole["usage"]["prompt_tokens"] + extra
    assert carried.input_tokens == min(told, holds["in"]), "what nobody reported stays in its hold"


def test_a_stream_of_a_killed_engine_goes_on_and_the_engine_comes_back_without_odd_figures(
    store: "redis.Redis[bytes]",
    tmp_path: Path,
    doomed: dict[str, RunningVllm],
    tiny_vllm: RunningVllm,
    start_vllm: StartVllm,
) -> None:
    engine = doomed["dies"]
    wait_load(tiny_vllm, 0)
    goes_on = policy(deadlines=DEADLINES, failures=FailurePolicy(continue_lost=True))
    snapshot = snapshot_of(pool_of("p1", engine), pool_of("p2", tiny_vllm), policy=goes_on)
    url = os.environ["REDIS_URL"]
    seen: list[EndpointState] = []
    with closing(store_client()) as client, start_collector(url, tmp_path):
        publish(store, snapshot)

        def health() -> ReplicaHealth | None:
            state = endpoint(client, "p1")
            if state is not None and (not seen or state.at_ms != seen[-1].at_ms):
                seen.append(state)
            return state.health if state else None

        with gateway_over(tmp_path, snapshot) as gateway:
            wait_until(lambda: health() is ReplicaHealth.OK, 20, "seen well")
            for _ in range(3):
                assert chat(gateway, max_tokens=50).finish().status == 200
            wait_until(lambda: health() and seen[-1].generation_tokens_per_s == 0, 20, "idle")
            goes_on_when_killed(store, gateway, engine, tiny_vllm)
            wait_until(lambda: health() is ReplicaHealth.LOST, 20, "it is seen to be lost")
            wait_until(lambda: _leaves_alone(gateway, store, engine), 20, "traffic goes elsewhere")
            for is_stream in (True, False):
                assert chat(gateway, stream=is_stream).finish().status == 200
            last = usage_events(store, ACME)[-1][1]
            assert (last.pool, last.attempts) == ("p2", 1)
            engine.process.wait(60)
            with start_vllm("dies-0", port=engine.port):
                wait_until(lambda: health() is ReplicaHealth.OK, 60, "well again")
                wait_until(lambda: _pool_of_next(gateway, store) == "p1", 60, "used again")
                health()
    rates = [
        rate
        for state in seen
        for rate in (state.generation_tokens_per_s, state.prompt_tokens_per_s)
        if rate is not None
    ]
    assert rates
    assert all(0 <= rate < ABSURD_PER_S for rate in rates), rates
    means = [state.ttft_mean_s for state in seen if state.ttft_mean_s is not None]
    assert all(0 < mean_s < 60 for mean_s in means), means


def _pool_of_next(gateway: Any, store: "redis.Redis[bytes]") -> str:
    before = len(usage_events(store, ACME))
    call: Call = chat(gateway, max_tokens=2).finish()
    if call.status != 200:
        return ""
    return events(store, before + 1)[-1].pool


def _leaves_alone(gateway: Any, store: "redis.Redis[bytes]", engine: RunningVllm) -> bool:
    """Whether its breaker is open by now: calls find out one by one, with pauses between."""
    served = _serves_at_once(gateway, store)
    page = httpx.get(f"{gateway.admin_url}/metrics", timeout=10, trust_env=False).text
    is_open = f'headrace_replica_breaker_open{{replica="{engine.name}"}} 1'
    return served and is_open in page.splitlines()


def _serves_at_once(gateway: Any, store: "redis.Redis[bytes]") -> bool:
    before = len(usage_events(store, ACME))
    call: Call = chat(gateway, max_tokens=2).finish()
    return call.status == 200 and events(store, before + 1)[-1].attempts == 1
