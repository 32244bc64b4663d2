"""What it costs to be served by an endpoint, in seconds: lower is better.

A first, honest form of `S = TTFT_hat + neighbours + kv_penalty`: it uses priors of a
mid-size engine instead of the pool's measured profile, so its terms rank endpoints of like pools
and are not a promise of a latency.
"""

from typing import NamedTuple

from routing.decision.filters import Candidate, Load, Need

STEP_S = 0.010  # decode step of an idle engine
PREFILL_S_PER_TOKEN = 15e-6
SERVICE_S = 0.25  # what one waiting request delays those behind it
KV_PRESSURE_RATIO = 0.9


class Terms(NamedTuple):
    """What makes up a score, in seconds."""

    prefill_s: float
    waiting_s: float
    running_s: float
    kv_penalty_s: float


def terms_of(_candidate: Candidate, load: Load, need: Need, _now_s: float) -> Terms:
    """Every term of an endpoint for this request."""
    prefill_s = need.input_tokens * PREFILL_S_PER_TOKEN
    kv_penalty_s = 0.0
    if load.kv_ratio > KV_PRESSURE_RATIO:
        kv_penalty_s = (load.kv_ratio - KV_PRESSURE_RATIO) / (1 - KV_PRESSURE_RATIO) * SERVICE_S
    running_s = (load.running + 1) * STEP_S
    return Terms(prefill_s, load.waiting * SERVICE_S, running_s, kv_penalty_s)
