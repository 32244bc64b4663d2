"""Engine profiles: how long a step takes and how much KV fits.

Step time is `t = t0 + c*(P+D) + d*K + e*A` seconds: P prefill tokens computed in the step, D decode
sequences, K the sum of their context tokens, A the sum over prefill chunks of
`n * (context_before + n/2)`. Where the numbers come from: `estimates`.
"""

from dataclasses import dataclass, replace
from typing import Any


class UnknownProfileError(LookupError):
    """No profile of that name is built in."""


@dataclass(frozen=True, slots=True)
class StepTimes:
    """The terms of a step's time, in seconds (`d_s` and `e_s` per token and token squared).

    Two more for some engines: a mixture of experts reads `expert_s` times the share of its experts
    that the step's tokens touch, each token `expert_ratio` of them; `verify_s` is what a decode
    sequence costs beside `c_s`, for checking drafted tokens.
    """

    t0_s: float
    c_s: float
    d_s: float
    e_s: float
    expert_s: float = 0.0
    expert_ratio: float = 1.0
    verify_s: float = 0.0

    def seconds(
        self, prefill_tokens: int, decodes: int, context_tokens: int, attention: float
    ) -> float:
        """Duration of a step over P, D, K and A."""
        tokens = prefill_tokens + decodes
        time_s = self.t0_s + self.c_s * tokens + self.d_s * context_tokens + self.e_s * attention
        if self.expert_s:
            time_s += self.expert_s * touched_ratio(self.expert_ratio, tokens)
        return time_s + self.verify_s * decodes if self.verify_s else time_s

    def scaled(self, factor: float) -> "StepTimes":
        """The same engine `factor` times slower."""
        names = ("t0_s", "c_s", "d_s", "e_s", "expert_s", "verify_s")
        changes: dict[str, Any] = {name: getattr(self, name) * factor for name in names}
        return replace(self, **changes)


def touched_ratio(expert_ratio: float, tokens: float) -> float:
    """Share of the experts that so many tokens touch, each choosing `expert_ratio` of them."""
    return float(1 - (1 - expert_ratio) ** tokens)


@dataclass(frozen=True, slots=True)
class Tier:
    """Room for KV that the accelerator had to give up, and how long a token takes to come back."""

    name: str
    kv_tokens: int
    load_s_per_token: float


@dataclass(frozen=True, slots=True)
class EngineProfile:
    """One replica: its step times and vLLM's own limits.

    `token_budget` is `max_num_batched_tokens`, `seats` is `max_num_seqs`; a prefill longer than
    `long_prefill_tokens` is cut to it while other requests exist (0: never). `tiers` are asked in
    turn for prefixes that the accelerator no longer has.
    """

    name: str
    times: StepTimes
    kv_blocks: int
    block_tokens: int = 16
    token_budget: int = 8192
    seats: int = 1024
    context_tokens: int = 131_072
    long_prefill_tokens: int = 0
    watermark_blocks: int = 0
    tiers: tuple[Tier, ...] = ()

    @property
    def kv_tokens(self) -> int:
        """KV capacity in tokens."""
        return self.kv_blocks * self.block_tokens

    def with_times(self, times: StepTimes) -> "EngineProfile":
        """The same replica with other step times."""
        return replace(self, times=times)
