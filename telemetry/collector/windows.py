"""Scrapes of an engine to windows of a few seconds: what a pool's step times are calibrated on.

Counters count as deltas over the window. A window whose mean step says nothing of how long a step
takes (too few steps, a preemption, a restart) is only counted, by why.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from redis.asyncio import Redis

from capacity.simulation.calibration import STEPS_LEAST
from routing.contracts.engine_windows import WINDOWS_MAX, EngineWindow, encode_window
from routing.store import keys
from telemetry.collector.rules import EngineSample

WINDOW_S = 5.0
KEPT_S = 8 * 24 * 3600
_COUNTERS = (
    "steps",
    "computed_tokens",
    "generation_tokens",
    "prompt_tokens",
    "ttft_count",
    "itl_sum_s",
    "itl_count",
)


@dataclass(frozen=True, slots=True)
class Filling:
    """A window that is filling: its first scrape, and the KV in use at those that saw work."""

    first: EngineSample
    kv_tokens: float = 0.0
    kv_readings: int = 0


@dataclass(frozen=True, slots=True)
class Closed:
    """A window that ended: what it says, or why it says nothing (one of `SKIPPED`, or empty)."""

    window: EngineWindow | None = None
    skipped: str = ""


def fold(
    filling: Filling | None,
    sample: EngineSample,
    replica_id: str,
    at_ms: int,
    window_s: float = WINDOW_S,
) -> tuple[Filling, Closed | None]:
    """The window after one more scrape, and the one that this scrape closes."""
    if filling is None:
        return _begun(sample), None
    elapsed_s = sample.at_s - filling.first.at_s
    filling = _with_kv(filling, sample)
    if elapsed_s < window_s:
        return filling, None
    if elapsed_s > 2 * window_s:  # scrapes failed: the mean KV is not known
        return _begun(sample), None
    return _begun(sample), _closed(filling, sample, replica_id, at_ms)


def _begun(sample: EngineSample) -> Filling:
    return _with_kv(Filling(sample), sample)


def _with_kv(filling: Filling, sample: EngineSample) -> Filling:
    if not sample.running or sample.kv_usage_ratio is None or sample.kv_capacity_tokens is None:
        return filling
    return replace(
        filling,
        kv_tokens=filling.kv_tokens + sample.kv_usage_ratio * sample.kv_capacity_tokens,
        kv_readings=filling.kv_readings + 1,
    )


def _closed(filling: Filling, last: EngineSample, replica_id: str, at_ms: int) -> Closed | None:
    first = filling.first
    rises: dict[str, float] = {}
    for name in _COUNTERS:
        before, after = getattr(first, name), getattr(last, name)
        if before is None or after is None:
            return None  # an engine that does not say it
        rises[name] = after - before
    if first.run != last.run or min(rises.values()) < 0:
        return Closed(skipped="restarted")
    if not rises["steps"]:
        return None  # idle
    if last.preemptions != first.preemptions:
        return Closed(skipped="preempted")
    if rises["steps"] < STEPS_LEAST or not rises["itl_count"] or not filling.kv_readings:
        return Closed(skipped="few_steps")
    return Closed(
        EngineWindow(
            replica_id=replica_id,
            at_ms=at_ms,
            steps=round(rises["steps"]),
            prefill_tokens=rises["computed_tokens"],
            decode_tokens=rises["generation_tokens"],
            kv_tokens=filling.kv_tokens / filling.kv_readings,
            prompt_tokens=rises["prompt_tokens"],
            prompts=rises["ttft_count"],
            itl_s=rises["itl_sum_s"] / rises["itl_count"],
        )
    )


async def keep(store: Redis, closed: Iterable[tuple[str, Closed]]) -> None:
    """Add (pool, window) pairs to what the store keeps of each pool. Raises `RedisError`."""
    async with store.pipeline(transaction=False) as pipe:
        for pool, one in closed:
            if one.window is not None:
                name = keys.engine_windows(pool)
                pipe.rpush(name, encode_window(one.window))
                pipe.ltrim(name, -WINDOWS_MAX, -1)
                pipe.expire(name, KEPT_S)
            else:
                name = keys.engine_windows_skipped(pool)
                pipe.hincrby(name, one.skipped, 1)
                pipe.expire(name, KEPT_S)
        await pipe.execute()
