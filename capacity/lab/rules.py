"""What if? One demand over one fleet by the closed forms, and three questions worth a guess first.

Nothing here is looked up: each answer is computed from its question's own inputs by the functions
that plans use.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf

from capacity.forecasts.rules.sizing import (
    KV_SHARE,
    Plan,
    need_of,
    plan_of,
    share_to_shed,
    whole,
)
from capacity.simulation.catalogue import named
from capacity.simulation.closed_forms import (
    Demand,
    decodes_in_flight,
    highest_utilisation,
    kv_tokens,
    mean_itl_s,
    utilisation,
    work_of,
)
from capacity.simulation.profiles import EngineProfile

CLOSE_RATIO = 0.1  # a guess this near is right: the model's own error is as large


@dataclass(frozen=True, slots=True)
class Inputs:
    """A question. Ratios are 0 to 1; `growth` multiplies the rate; `lost_ratio` of the fleet."""

    profile: str
    replicas: int
    domains: int
    rate_rps: float
    input_tokens: float
    output_tokens: float
    cached_ratio: float = 0.0
    growth: float = 1.0
    lost_ratio: float = 0.0
    retry_ratio: float = 0.0
    itl_target_s: float = 0.050

    @property
    def demand(self) -> Demand:
        """The grown demand, resends included."""
        rate = self.rate_rps * self.growth * (1 + self.retry_ratio)
        return Demand(rate, self.input_tokens, self.output_tokens, self.cached_ratio)


@dataclass(frozen=True, slots=True)
class Answer:
    """What the fleet does under it. Ratios above 1 are demand that does not fit.

    `compute_ratio` is of the step time that the ITL target leaves, its two parts add up to it;
    `kv_ratio` is of the KV that may be filled. `itl_s` is infinite when nothing settles.
    """

    demand: Demand
    replicas_left: int
    prefill_ratio: float
    decode_ratio: float
    kv_ratio: float
    itl_s: float
    decodes: float
    cold_prefill_ratio: float
    shed_ratio: float
    plan: Plan

    @property
    def compute_ratio(self) -> float:
        """Prefill and decode together."""
        return self.prefill_ratio + self.decode_ratio

    @property
    def bottleneck(self) -> str:
        """What fills first."""
        parts = {
            "KV cache": self.kv_ratio,
            "prefill": self.prefill_ratio,
            "decode": self.decode_ratio,
        }
        if self.kv_ratio < self.compute_ratio:
            del parts["KV cache"]
        return max(parts, key=lambda name: parts[name])

    @property
    def fits(self) -> bool:
        """Whether the replicas left carry all of it within the target."""
        return max(self.compute_ratio, self.kv_ratio) <= 1


def answer(inputs: Inputs, profile: EngineProfile) -> Answer:
    """Utilisation of what is left of the fleet, and the replicas that it would take."""
    demand = inputs.demand
    left = max(0, inputs.replicas - whole(inputs.replicas * inputs.lost_ratio))
    allowed = highest_utilisation(profile.times, inputs.itl_target_s)
    work = work_of(profile.times, demand)
    room = left * allowed
    kv_ratio = _ratio(kv_tokens([demand], inputs.itl_target_s), left * KV_SHARE * profile.kv_tokens)
    cold = work_of(profile.times, replace(demand, cached_ratio=0.0))
    each = replace(demand, rate_rps=demand.rate_rps / left if left else inf)
    itl_s = mean_itl_s(profile.times, utilisation(profile.times, [each]) if left else inf)
    compute = _ratio(demand.rate_rps * work.total_s, room)
    return Answer(
        demand=demand,
        replicas_left=left,
        prefill_ratio=_ratio(demand.rate_rps * work.prefill_s, room),
        decode_ratio=_ratio(demand.rate_rps * work.decode_s, room),
        kv_ratio=kv_ratio,
        itl_s=itl_s,
        decodes=decodes_in_flight([demand], itl_s) if itl_s < inf else inf,
        cold_prefill_ratio=_ratio(demand.rate_rps * cold.prefill_s, room),
        shed_ratio=share_to_shed(max(compute, kv_ratio), 1.0),
        plan=plan_of(need_of(profile, [demand], inputs.itl_target_s), inputs.domains),
    )


def _ratio(amount: float, room: float) -> float:
    if amount <= 0:
        return 0.0
    return amount / room if room > 0 else inf


@dataclass(frozen=True, slots=True)
class Question:
    """A situation, what is asked of it, the computed answer and how it comes about."""

    slug: str
    title: str
    situation: str
    asks: str
    unit: str
    value: float
    because: tuple[str, ...]
    inputs: Inputs

    def judged(self, guess: float) -> str:
        """How far a guess is from the answer, in words."""
        if abs(guess - self.value) <= CLOSE_RATIO * self.value:
            return "close"
        if guess <= 0:
            return "too low"
        factor = max(guess, self.value) / min(guess, self.value)
        side = "too low" if guess < self.value else "too high"
        return f"{factor:.1f} times {side}"


def questions() -> tuple[Question, ...]:
    """The three, computed anew."""
    return _eight_gpus(), _longer_prompts(), _assistant()


def _eight_gpus() -> Question:
    inputs = Inputs("70b-fp8-h100-tp4", 2, 1, 120, 800, 300, itl_target_s=0.025)
    small = answer(replace(inputs, profile="8b-bf16-h100", replicas=8), named("8b-bf16-h100"))
    large = answer(inputs, named(inputs.profile))
    carried = 1 / large.compute_ratio
    return Question(
        slug="eight-gpus",
        title="120 requests a second on 8 GPUs",
        situation="120 requests a second of 800 input and 300 output tokens, on eight H100 with a "
        "70B model in fp8, four GPUs a replica. Mean time between tokens must stay within 25 ms.",
        asks="What share of the demand do the eight GPUs carry?",
        unit="%",
        value=carried * 100,
        because=(
            f"{large.demand.input_tokens_per_s:,.0f} input and "
            f"{large.demand.output_tokens_per_s:,.0f} output tokens a second arrive.",
            f"It takes {large.plan.need.replicas} replicas of four GPUs: "
            f"each carries {large.plan.need.rps_per_replica:.1f} requests a second.",
            f"An 8B model would need {small.plan.need.replicas} of the eight GPUs: the answer "
            "depends on the model far more than on the request rate.",
        ),
        inputs=inputs,
    )


def _mix(before: Demand, longer_tokens: float) -> Sequence[Demand]:
    """The same rate, half of it with longer prompts."""
    half = replace(before, rate_rps=before.rate_rps / 2)
    return half, replace(half, input_tokens=longer_tokens)


def _longer_prompts() -> Question:
    before = Demand(100, 1_000, 100)
    after = _mix(before, 20_000)
    grown = sum(part.input_tokens_per_s for part in after)
    mean = grown / before.rate_rps
    return Question(
        slug="longer-prompts",
        title="The same request rate, longer prompts",
        situation="A tenant sends 100 requests a second of 1,000 input tokens. "
        "From today half of them carry 20,000. The request rate stays as it was.",
        asks="By what factor does its input work grow?",
        unit="times",
        value=grown / before.input_tokens_per_s,
        because=(
            f"{before.input_tokens_per_s:,.0f} input tokens a second become {grown:,.0f}.",
            "Not 20 times: half of the requests stayed short. A limit on requests sees no change "
            "at all; a limit on input tokens sees all of it.",
        ),
        inputs=Inputs("70b-fp8-h100-tp4", 12, 3, 100, mean, 100),
    )


def _assistant() -> Question:
    before = Demand(20 / 60, 1_500, 200)
    after = _mix(before, 15_000)
    grown = sum(part.input_tokens_per_s for part in after)
    output = sum(part.output_tokens_per_s for part in after)
    return Question(
        slug="assistant",
        title="An assistant that reads more",
        situation="An assistant makes 20 calls a minute of 1,500 input and 200 output tokens. "
        "Half of them now include a document: 15,000 input tokens.",
        asks="By what factor does its input work grow?",
        unit="times",
        value=grown / before.input_tokens_per_s,
        because=(
            f"{before.input_tokens_per_s:,.0f} input tokens a second become {grown:,.0f} "
            f"({grown * 60:,.0f} a minute).",
            f"Output stays at {output:.1f} tokens a second: "
            "a bill by output, or by requests, hardly moves.",
        ),
        inputs=Inputs("8b-bf16-h100", 2, 1, before.rate_rps, grown / before.rate_rps, 200),
    )
