"""Windows of an engine whose step times are known, in the store as the collector keeps them."""

import random
import time
from typing import Any

from capacity.models import Pool
from capacity.profiles.services import calibrate_pool
from capacity.simulation.profiles import StepTimes
from routing.contracts.engine_windows import EngineWindow, encode_window
from routing.store import keys

SLOW = StepTimes(50e-3, 120e-6, 300e-9, 8e-9)  # twice what the profile `demo` says


def windows(
    count: int,
    times: StepTimes = SLOW,
    *,
    noise: float = 0.02,
    seed: int = 1,
    end_ms: int = 0,
    every_ms: int = 5000,
) -> list[EngineWindow]:
    """Windows of drifting load; `noise` is the largest relative error of a step's time."""
    draw = random.Random(seed)
    end_ms = end_ms or time.time_ns() // 1_000_000
    found = []
    for at in range(count):
        decodes, prefill = 1 + 30 * draw.random(), 200 * draw.random()
        prompt = 100 + 900 * draw.random()
        kv = decodes * prompt
        step_s = times.seconds(0, 0, 0, 0.0)
        step_s += times.c_s * (prefill + decodes) + times.d_s * kv
        step_s += times.e_s * prefill * prompt / 2
        found.append(
            EngineWindow(
                replica_id="p-0",
                at_ms=end_ms - (count - 1 - at) * every_ms,
                steps=100,
                prefill_tokens=100 * prefill,
                decode_tokens=100 * decodes,
                kv_tokens=kv,
                prompt_tokens=10 * prompt,
                prompts=10.0,
                itl_s=step_s * (1 + noise * (2 * draw.random() - 1)),
            )
        )
    return found


def keep_windows(store: Any, pool: str, found: list[EngineWindow], **skipped: int) -> None:
    """As the collector does."""
    store.rpush(keys.engine_windows(pool), *(encode_window(one) for one in found))
    for why, count in skipped.items():
        store.hincrby(keys.engine_windows_skipped(pool), why, count)


def make_profile(store: Any, pool: str) -> None:
    """A fitted version of a pool whose prior is wrong."""
    # From the minute in which the pool's revision was made: windows of before it do not count.
    end_ms = time.time_ns() // 1_000_000 + 3_600_000
    keep_windows(store, pool, windows(40, end_ms=end_ms), few_steps=3)
    assert calibrate_pool(Pool.objects.select_related("model", "profile__version").get(name=pool))
