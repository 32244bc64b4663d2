"""The simulator against a live engine: profiled on one workload, judged on another.

`probing` measures the engine first. Then Poisson arrivals of mixed sizes are sent several times,
and the same arrivals are simulated with the profile found. Each figure may be off by 10 %, or by
1.5 times what the engine's own runs differ from their median; throughput by 5 %.
"""

import asyncio
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from capacity.simulation.measures import Durations
from capacity.simulation.probing import Found, fitted, plan
from capacity.simulation.profiles import EngineProfile
from capacity.simulation.run import Run
from capacity.simulation.scenario import ReplicaSpec, Scenario
from capacity.simulation.workload import Arrival, Phase, lognormal, stream
from console.benchmarks.probe import (
    Endpoint,
    ProbeError,
    Prober,
    Progress,
    Told,
    probe,
    told,
)
from console.demo.client import GatewayAddress

RUNS: Final = 5
ERROR_MOST: Final = 0.10
SPREAD_FACTOR: Final = 1.5
THROUGHPUT_MOST: Final = 0.05
DECODES: Final = 4.0  # in flight on average: it batches, and prompts and answers meet
REQUESTS_MOST: Final = 150  # a run: beyond a few a second the sender's own CPU is in the figures
PROMPT_MEAN: Final = 200.0
OUTPUT_MEAN: Final = 40.0
PROBE_REQUESTS: Final = 200
PROBE_BATCH: Final = 16
PROBE_S: Final = 240.0
WAIT_AFTER_S: Final = 600.0
UNTOLD_KV_BLOCKS: Final = 1 << 16
_QUANTILES: Final = (
    ("ttft_p50_s", 0.5),
    ("ttft_p95_s", 0.95),
    ("e2e_p50_s", 0.5),
    ("e2e_p95_s", 0.95),
)


@dataclass(frozen=True, slots=True)
class Limits:
    """The engine's own, which nobody can see from outside, and how long each run takes."""

    token_budget: int
    seats: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Served:
    """One request of a run: when it was due, what it had, and how long it took."""

    at_s: float
    input_tokens: int
    output_tokens: int
    ttft_s: float
    e2e_s: float


def live_fidelity(
    url: str, *, model: str, key: str, limits: Limits, progress: Progress
) -> dict[str, Any]:
    """Errors of TTFT, E2E and throughput against the engine at `url`. Raises `ProbeError`."""
    try:
        address = GatewayAddress.from_url(url)
    except ValueError as error:
        raise ProbeError(str(error)) from error
    name, facts = told(address, model, key)
    endpoint = Endpoint(address, name, key)
    return asyncio.run(_judged(endpoint, facts, limits, progress))


async def _judged(
    endpoint: Endpoint, facts: Told, limits: Limits, progress: Progress
) -> dict[str, Any]:
    context = facts.context_tokens or 4096
    prober = Prober(endpoint, seed=1)
    asks = plan(
        context_tokens=context,
        most_batch=min(PROBE_BATCH, limits.seats),
        most_requests=PROBE_REQUESTS,
    )
    samples = await probe(prober, asks, most_s=PROBE_S, progress=progress)
    found = fitted(samples, token_budget=limits.token_budget)
    profile = EngineProfile(
        endpoint.model,
        found.times,
        kv_blocks=facts.kv_blocks or UNTOLD_KV_BLOCKS,
        block_tokens=facts.block_tokens or 16,
        token_budget=limits.token_budget,
        seats=limits.seats,
        context_tokens=context,
    )
    due = _arrivals(profile, limits.seconds, context)
    runs = []
    for number in range(RUNS):
        runs.append(await _sent(prober, due))
        progress(f"run {number + 1} of {RUNS}: {len(due)} requests in {limits.seconds:.0f} s")
    return judged(runs, profile, found)


def _arrivals(profile: EngineProfile, seconds: float, context: int) -> list[Arrival]:
    """Poisson arrivals of lognormal sizes that keep `DECODES` answers in flight."""
    times = profile.times
    own_s = times.c_s + times.d_s * (PROMPT_MEAN + OUTPUT_MEAN / 2)
    busy_s = OUTPUT_MEAN * (times.t0_s + DECODES * own_s)
    sizes = (
        lognormal(PROMPT_MEAN, 1.0, max(1, context // 2)),
        lognormal(OUTPUT_MEAN, 0.5, max(1, context // 4)),
    )
    rate_per_s = min(DECODES / busy_s, REQUESTS_MOST / seconds)
    return list(stream([Phase(0.0, seconds, rate_per_s, *sizes)], seed=7))


async def _sent(prober: Prober, due: Sequence[Arrival]) -> list[Served]:
    start_s = time.monotonic()

    async def one(arrival: Arrival) -> Served:
        await asyncio.sleep(max(0.0, start_s + arrival.at_s - time.monotonic()))
        words = prober.words_for(arrival.input_tokens)
        sent_s, answer, end_s = await prober.timed(words, arrival.output_tokens)
        if answer.first_text_at is None:
            raise ProbeError("an answer had no text")
        return Served(
            sent_s - start_s,
            answer.input_tokens or arrival.input_tokens,
            answer.output_tokens or arrival.output_tokens,
            answer.first_text_at - sent_s,
            end_s - sent_s,
        )

    return list(await asyncio.gather(*(one(arrival) for arrival in due)))


def figures_of(served: Sequence[Served]) -> dict[str, float]:
    """TTFT and E2E percentiles, and output tokens a second from first arrival to last end."""
    ttft, e2e = Durations(), Durations()
    for one in served:
        ttft.add(one.ttft_s)
        e2e.add(one.e2e_s)
    end_s = max(one.at_s + one.e2e_s for one in served)
    begin_s = min(one.at_s for one in served)
    rate = sum(one.output_tokens for one in served) / (end_s - begin_s)
    return _named(ttft, e2e, rate)


def _named(ttft: Durations, e2e: Durations, rate: float) -> dict[str, float]:
    found = {
        name: (ttft if name.startswith("ttft") else e2e).quantile(q) or 0.0
        for name, q in _QUANTILES
    }
    return {**found, "output_tokens_per_s": rate}


def predicted(
    served: Sequence[Served], profile: EngineProfile, overhead_s: float
) -> dict[str, float]:
    """The same arrivals in virtual time; each request has `overhead_s` outside its steps."""
    due = sorted(served, key=lambda one: one.at_s)
    arrivals = [Arrival(one.at_s + overhead_s, one.input_tokens, one.output_tokens) for one in due]
    until_s = due[-1].at_s + WAIT_AFTER_S
    run = Run(Scenario((ReplicaSpec("e0", profile),), until_s), arrivals, 1).to_end()
    total = run.measures.total()
    if total.ok != len(due):
        raise ProbeError(f"the profile serves {total.ok} of {len(due)} requests")
    shifted = [_shifted(total.ttft, overhead_s), _shifted(total.e2e, overhead_s)]
    rate = sum(one.output_tokens for one in due) / (run.last_end_s - due[0].at_s)
    return _named(shifted[0], shifted[1], rate)


def _shifted(durations: Durations, by_s: float) -> Durations:
    """Each bin's middle, `by_s` later: within the sketch's 1 %."""
    found = Durations()
    for index, count in durations.bins.items():
        middle = Durations({index: 1}, 0.0, 1).quantile(0.5) or 0.0
        found.add(middle + by_s, count)
    return found


def judged(
    runs: Sequence[Sequence[Served]], profile: EngineProfile, found: Found
) -> dict[str, Any]:
    """Each figure: the median of the runs, its spread, the prediction's error and its bound."""
    measured = [figures_of(run) for run in runs]
    guesses = [predicted(run, profile, found.overhead_s) for run in runs]
    figures = {}
    for name in measured[0]:
        values = [one[name] for one in measured]
        middle = statistics.median(values)
        spread = max(abs(value / middle - 1) for value in values)
        guess = statistics.median(one[name] for one in guesses)
        most = max(ERROR_MOST, SPREAD_FACTOR * spread)
        if name == "output_tokens_per_s":
            most = THROUGHPUT_MOST
        error = guess / middle - 1
        figures[name] = {
            "measured": middle,
            "predicted": guess,
            "spread": spread,
            "error": error,
            "most": most,
            "holds": abs(error) <= most,
        }
    return {
        "runs": len(runs),
        "requests": len(runs[0]),
        "profile_error_ratio": found.error_ratio,
        "overhead_s": found.overhead_s,
        "times": {name: getattr(profile.times, name) for name in ("t0_s", "c_s", "d_s", "e_s")},
        "figures": figures,
        "holds": all(one["holds"] for one in figures.values()),
    }
