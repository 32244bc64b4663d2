"""What one engine does under a steady demand, without simulating it (decision-core, section 1.4).

A request of I input and O output tokens, of which the share h of the input is found in the prefix
cache, costs its replica

    w = c*(I(1-h) + O) + d*O*(I + O/2) + e*I(1-h)*(h*I + I(1-h)/2)   seconds

of step time beside the fixed `t0` of each step. At `rate` requests a second the replica works for
`rho = rate*w` of the time, steps take `t0/(1-rho)`, and Little's law gives decodes and KV.
Fitted to means only, the squares are too small: give each length its own `Demand` and add them up.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import erf, exp, inf, log, sqrt
from statistics import NormalDist

from capacity.simulation.profiles import StepTimes

_NORMAL = NormalDist()


@dataclass(frozen=True, slots=True)
class Demand:
    """Requests of one size: a rate, tokens of each, and the share of the input that is cached."""

    rate_rps: float
    input_tokens: float
    output_tokens: float
    cached_ratio: float = 0.0

    @property
    def input_tokens_per_s(self) -> float:
        """Input tokens that arrive each second, cached ones too."""
        return self.rate_rps * self.input_tokens

    @property
    def computed_tokens_per_s(self) -> float:
        """Input tokens that prefill must compute each second."""
        return self.input_tokens_per_s * (1 - self.cached_ratio)

    @property
    def output_tokens_per_s(self) -> float:
        """Output tokens asked for each second."""
        return self.rate_rps * self.output_tokens


@dataclass(frozen=True, slots=True)
class Work:
    """What one request costs a replica, in seconds of step time."""

    prefill_s: float
    decode_s: float

    @property
    def total_s(self) -> float:
        """`w` of the module's formula."""
        return self.prefill_s + self.decode_s


def work_of(times: StepTimes, demand: Demand) -> Work:
    """Step time that one request of this size adds; its `rate_rps` does not matter."""
    fresh = demand.input_tokens * (1 - demand.cached_ratio)
    cached = demand.input_tokens * demand.cached_ratio
    out, context = demand.output_tokens, demand.input_tokens + demand.output_tokens / 2
    return Work(
        prefill_s=times.c_s * fresh + times.e_s * fresh * (cached + fresh / 2),
        decode_s=times.c_s * out + times.d_s * out * context,
    )


def utilisation(times: StepTimes, demands: Sequence[Demand]) -> float:
    """`rho` of one replica that gets all of these; 1 and more has no steady state."""
    return sum(demand.rate_rps * work_of(times, demand).total_s for demand in demands)


def mean_itl_s(times: StepTimes, rho: float) -> float:
    """Mean inter-token latency at a utilisation; infinite from 1 on."""
    return times.t0_s / (1 - rho) if rho < 1 else inf


def highest_utilisation(times: StepTimes, itl_s: float) -> float:
    """`rho*`: up to here the mean ITL stays within `itl_s`; 0 if even an idle step is longer."""
    return max(0.0, 1 - times.t0_s / itl_s)


def decodes_in_flight(demands: Sequence[Demand], itl_s: float) -> float:
    """Mean number of decoding requests (Little)."""
    return sum(demand.output_tokens_per_s * itl_s for demand in demands)


def kv_tokens(demands: Sequence[Demand], itl_s: float, prefill_s: float = 0.0) -> float:
    """Mean KV tokens held (Little); each prompt also waits `prefill_s` for its prefill."""
    return sum(
        demand.rate_rps
        * (
            demand.output_tokens * itl_s * (demand.input_tokens + demand.output_tokens / 2)
            + prefill_s * demand.input_tokens
        )
        for demand in demands
    )


def chunk_budget(times: StepTimes, itl_s: float, kv_held_tokens: float, context: float) -> float:
    """Largest token budget of a step that keeps it within `itl_s`; 0 if none does."""
    room_s = itl_s - times.t0_s - times.d_s * kv_held_tokens
    return max(0.0, room_s / (times.c_s + times.e_s * context))


def tokens_per_decode_step(draft_tokens: int, acceptance: float) -> float:
    """Mean tokens of a speculative decode step of a draft length and an acceptance rate."""
    if acceptance >= 1:
        return draft_tokens + 1.0
    return (1 - acceptance ** (draft_tokens + 1)) / (1 - acceptance)


@dataclass(frozen=True, slots=True)
class Lengths:
    """Lognormal token counts of a mean and a coefficient of variation."""

    mean_tokens: float
    cv: float

    @property
    def sigma(self) -> float:
        """Deviation of the logarithm."""
        return sqrt(log(1 + self.cv**2))

    @property
    def mu(self) -> float:
        """Mean of the logarithm."""
        return log(self.mean_tokens) - self.sigma**2 / 2

    def quantile(self, share: float) -> float:
        """Tokens that `share` of the requests stay below."""
        return exp(self.mu + self.sigma * _NORMAL.inv_cdf(share))

    def held_by_longest(self, share: float) -> float:
        """Share of all tokens that the longest `share` of the requests bring."""
        cut = _NORMAL.inv_cdf(1 - share)
        return 0.5 * (1 + erf((self.sigma - cut) / sqrt(2)))

    @property
    def second_moment(self) -> float:
        """Mean of the squared token count."""
        return self.mean_tokens**2 * (1 + self.cv**2)
