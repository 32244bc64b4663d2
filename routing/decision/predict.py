"""When an endpoint would give the first token: the score of `select` from a pool's own profile.

    TTFT_hat = residual/2 + k*(t0 + c*D + d*K) + c*(Q + u) + e*u*(hit + u/2)

with u the request's tokens that its cache lacks, `hit` those it has, Q uncached tokens ahead, D
decodes over K context tokens, B the engine's token budget and `k = ceil((Q + u) / (B - D))` steps.
The step in progress is as long as one without prefill: `residual/2` is half of that.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple

from routing.decision.filters import Candidate, Load, Need
from routing.decision.scorers import KV_PRESSURE_RATIO, Terms

NEIGHBOUR_WEIGHT: Final = 0.02  # of the delay that a request lays on each neighbour's tokens


class StepModel(NamedTuple):
    """How long a step of the pool's engines takes (seconds), and how many tokens it may hold."""

    t0_s: float
    c_s: float
    d_s: float
    e_s: float
    budget_tokens: int


@dataclass(slots=True)
class Ahead:
    """What is known to be at an endpoint: its gateway keeps it, the rules only read it.

    `queued_tokens` are uncached prompt tokens of own dispatches without a first token and of what
    was reported waiting; `decodes` answers run over `context_tokens`.
    """

    queued_tokens: int = 0
    decodes: int = 0
    context_tokens: int = 0

    def sent(self, uncached_tokens: int) -> None:
        """A request is on its way; `uncached_tokens` of its prompt are to be computed."""
        self.queued_tokens += uncached_tokens

    def started(self, uncached_tokens: int, prompt_tokens: int) -> None:
        """Its first token is here: it is prefilled and decodes now."""
        self.queued_tokens -= uncached_tokens
        self.decodes += 1
        self.context_tokens += prompt_tokens

    def ended(self, uncached_tokens: int, prompt_tokens: int, *, has_started: bool) -> None:
        """It is over, however it ended; `has_started`: it had given a token."""
        if has_started:
            self.decodes -= 1
            self.context_tokens -= prompt_tokens
        else:
            self.queued_tokens -= uncached_tokens


def wait_s(model: StepModel, ahead: Ahead, uncached_tokens: int) -> float:
    """The part of TTFT_hat that others cause: the step in progress, and the steps until its own."""
    step_s = model.t0_s + model.c_s * ahead.decodes + model.d_s * ahead.context_tokens
    queued = max(0, ahead.queued_tokens)
    room = max(1, model.budget_tokens - ahead.decodes)
    steps = math.ceil((queued + uncached_tokens) / room)
    residual_s = step_s if ahead.decodes or queued else 0.0
    return residual_s / 2 + steps * step_s + model.c_s * queued


def prefill_s(model: StepModel, uncached_tokens: int, hit_tokens: int) -> float:
    """The request's own part of TTFT_hat."""
    context = hit_tokens + uncached_tokens / 2
    return model.c_s * uncached_tokens + model.e_s * uncached_tokens * context


def ttft_s(model: StepModel, ahead: Ahead, input_tokens: int, hit_tokens: int = 0) -> float:
    """TTFT_hat of a request whose first `hit_tokens` the endpoint holds."""
    uncached = max(1, input_tokens - hit_tokens)
    return wait_s(model, ahead, uncached) + prefill_s(model, uncached, hit_tokens)


def predicted_ttft_s(terms: Terms) -> float:
    """TTFT_hat inside the terms of a `scorer`."""
    return terms.waiting_s + terms.prefill_s


def most_with_affinity(in_flight: int, replicas: int) -> int:
    """Requests that a replica may have before its cache draws no more: 1.25 of the mean, plus 1."""
    return math.ceil(1.25 * in_flight / max(1, replicas)) + 1


def scorer(
    model: Callable[[str], StepModel],
    ahead: Callable[[str], Ahead],
    hit_tokens: Callable[[str], int],
    *,
    output_q50_tokens: int,
    affinity_most: int,
) -> Callable[[Candidate, Load, Need, float], Terms]:
    """A score for `select`: seconds until the first token, and what the choice costs others.

    `model`, `ahead` and `hit_tokens` answer for an endpoint id. `running_s` is the delay laid on
    the neighbours.
    """

    def terms(candidate: Candidate, load: Load, need: Need, _now_s: float) -> Terms:
        here, times = ahead(candidate.id), model(candidate.id)
        hit = 0
        if candidate.in_flight < affinity_most:
            hit = min(hit_tokens(candidate.id), need.input_tokens - 1)
        uncached = need.input_tokens - hit
        waiting_s, own_s = wait_s(times, here, uncached), prefill_s(times, uncached, hit)
        token_s = times.c_s + times.d_s * need.input_tokens
        running_s = NEIGHBOUR_WEIGHT * output_q50_tokens * token_s * here.decodes
        penalty_s = 0.0
        if load.kv_ratio > KV_PRESSURE_RATIO and here.decodes:
            mean = here.context_tokens // here.decodes
            over = (load.kv_ratio - KV_PRESSURE_RATIO) / (1 - KV_PRESSURE_RATIO)
            penalty_s = over * prefill_s(times, mean, 0)
        return Terms(own_s, waiting_s, running_s, penalty_s)

    return terms
