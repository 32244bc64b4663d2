"""What may be added to a profile: speculative decoding, tiers of KV, a prefill pool of its own."""

from dataclasses import replace
from typing import Final

from capacity.simulation.profiles import EngineProfile

TRANSFER_EFFICIENCY: Final = (
    0.8  # of the wire's speed, as loads of weights reach (decision-core 1.6)
)


def tokens_per_step(draft_tokens: int, acceptance: float) -> float:
    """Mean tokens of a decode step that checks `draft_tokens` drafted ones: `(1-a^(g+1))/(1-a)`.

    `acceptance` is the chance that a drafted token is taken, each alike [Leviathan et al. 2023].
    """
    if acceptance >= 1:
        return float(draft_tokens + 1)
    return float((1 - acceptance ** (draft_tokens + 1)) / (1 - acceptance))


def with_speculation(
    profile: EngineProfile, *, draft_tokens: int, acceptance: float, draft_step_s: float = 0.0
) -> EngineProfile:
    """The same engine drafting `draft_tokens` before each step, each taking `draft_step_s`.

    The scheduler makes one token a step, so a step that gives n of them becomes n steps of a nth
    each: right in the mean, not in the burst. `t0` and `d` are spread over them, a sequence's check
    of g + 1 tokens costs `c*(g+1)/n`, prefill costs what it did; the token budget of the real step
    is shared out likewise.
    """
    made = tokens_per_step(draft_tokens, acceptance)
    old = profile.times
    times = replace(
        old,
        t0_s=(old.t0_s + draft_tokens * draft_step_s) / made,
        d_s=old.d_s / made,
        expert_s=old.expert_s / made,
        verify_s=old.verify_s + old.c_s * ((draft_tokens + 1) / made - 1),
    )
    budget = max(1, int(profile.token_budget / made))
    return replace(profile, times=times, token_budget=budget)


def moved_s(
    size_bytes: float, *, link_bytes_per_s: float, efficiency: float = TRANSFER_EFFICIENCY
) -> float:
    """Seconds until so many bytes have moved over a link of which `efficiency` is reached."""
    return size_bytes / (link_bytes_per_s * efficiency)


def transfer_s(
    kv_tokens: int,
    *,
    kv_bytes_per_token: float,
    link_bytes_per_s: float,
    efficiency: float = TRANSFER_EFFICIENCY,
) -> float:
    """Seconds until the KV of so many tokens has moved from a prefill to a decode engine."""
    size = kv_tokens * kv_bytes_per_token
    return moved_s(size, link_bytes_per_s=link_bytes_per_s, efficiency=efficiency)
