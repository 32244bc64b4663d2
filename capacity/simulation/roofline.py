"""Step times and KV capacity of a model on an accelerator, from what the makers state.

Each term of a step is a time that the hardware cannot beat (bytes over bandwidth, FLOPs over peak)
times one of six constants. They are a non-negative least squares fit to 318 published vLLM
measurements: a prior, replaced by a pool's own calibration (docs/simulate.md says how far it is
from measurements that the fit did not see).
"""

from dataclasses import dataclass
from typing import Final

from capacity.simulation.hardware import BF16_BYTES, GpuShape, ModelShape, Precision
from capacity.simulation.profiles import EngineProfile, StepTimes, touched_ratio

GIB: Final = 1024**3
MEMORY_SHARE: Final = 0.92  # vLLM's default gpu_memory_utilization
OVERHEAD_BYTES_PER_GPU: Final = 3.5 * GIB  # activations, graphs, communication buffers
BLOCK_TOKENS: Final = 16
SMALL_BUDGET: Final = 2048


@dataclass(frozen=True, slots=True)
class Constants:
    """How many times the hardware's own time each part takes; `layer_s` is per layer and step."""

    layer_s: float
    weight: float
    flop: float
    link: float
    kv: float
    attention: float


PRIOR: Final = Constants(74e-6, 1.14, 0.95, 2.84, 0.63, 4.25)


@dataclass(frozen=True, slots=True)
class Roofline:
    """The hardware's own times: per step, per token (`flop_s`, `link_s`, `kv_s`) or per A."""

    layers: int
    weight_s: float
    expert_s: float
    expert_ratio: float
    flop_s: float
    link_s: float
    kv_s: float
    attention_s: float

    def row(
        self, prefill: float, decodes: float, context: float, attention: float
    ) -> tuple[float, ...]:
        """A step's time is this row times the six constants; experts by its decodes alone."""
        tokens = prefill + decodes
        touched_s = self.expert_s * touched_ratio(self.expert_ratio, decodes)
        return (
            float(self.layers),
            self.weight_s + touched_s,
            self.flop_s * tokens,
            self.link_s * tokens,
            self.kv_s * context,
            self.attention_s * attention,
        )

    def times(self, constants: Constants = PRIOR) -> StepTimes:
        """Step times by the constants."""
        return StepTimes(
            t0_s=constants.layer_s * self.layers + constants.weight * self.weight_s,
            c_s=constants.flop * self.flop_s + constants.link * self.link_s,
            d_s=constants.kv * self.kv_s,
            e_s=constants.attention * self.attention_s,
            expert_s=constants.weight * self.expert_s,
            expert_ratio=self.expert_ratio,
        )


def roofline(
    model: ModelShape, gpu: GpuShape, *, tp: int, weights: Precision, kv: Precision
) -> Roofline:
    """The hardware's own times of `model` on `tp` accelerators.

    Embeddings and the LM head stay in bf16, as published FP8 checkpoints have them.
    """
    bandwidth = tp * gpu.bandwidth
    head_bytes = model.embedding_params * BF16_BYTES
    alone = 0 if model.experts else 1
    experts_bytes = model.layer_bytes(weights, model.experts) - model.layer_bytes(weights, 0)
    return Roofline(
        layers=model.layers,
        weight_s=(model.layer_bytes(weights, alone) + head_bytes) / bandwidth,
        expert_s=experts_bytes / bandwidth if model.experts else 0.0,
        expert_ratio=model.experts_per_token / model.experts if model.experts else 1.0,
        flop_s=2 * model.layer_params / (tp * gpu.gemm_flops(weights)),
        link_s=8 * model.layers * model.hidden * ((tp - 1) / tp) / gpu.link,
        kv_s=model.kv_bytes_per_token(kv.weight_bytes) / bandwidth,
        attention_s=model.attention_flops / (tp * gpu.bf16_flops),
    )


def kv_tokens(
    model: ModelShape, gpu: GpuShape, *, tp: int, weights: Precision, kv: Precision
) -> int:
    """Tokens of KV that fit beside weights and overhead; 0 when the weights alone do not fit."""
    memory = MEMORY_SHARE * gpu.memory_gib * GIB * tp
    table_bytes = model.embedding_params * BF16_BYTES
    free = memory - model.layer_bytes(weights, model.experts or 1) - 2 * table_bytes
    free -= tp * OVERHEAD_BYTES_PER_GPU
    return max(0, int(free / model.kv_bytes_per_token(kv.weight_bytes)))


def profile_of(
    name: str,
    model: ModelShape,
    gpu: GpuShape,
    *,
    tp: int,
    weights: Precision,
    kv: Precision,
    times: StepTimes | None = None,
) -> EngineProfile:
    """Profile of `model` on `tp` accelerators; `times` instead of the prior's where measured."""
    found = roofline(model, gpu, tp=tp, weights=weights, kv=kv).times() if times is None else times
    blocks = kv_tokens(model, gpu, tp=tp, weights=weights, kv=kv) // BLOCK_TOKENS
    return EngineProfile(
        name=name,
        times=found,
        kv_blocks=blocks,
        block_tokens=BLOCK_TOKENS,
        token_budget=gpu.token_budget,
        seats=256 if gpu.token_budget == SMALL_BUDGET else 1024,
        context_tokens=min(model.context_tokens, blocks * BLOCK_TOKENS),
    )
