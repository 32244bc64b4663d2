"""Models and accelerators as their makers state them, each with the source of its numbers.

Model shapes are those of the published `config.json`; accelerators those of the system tables of
ai-dynamo/aiconfigurator (commit 095f58a, dense peaks, one way link) unless `source` says otherwise.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

BF16_BYTES: Final = 2.0
AICONFIGURATOR: Final = "ai-dynamo/aiconfigurator@095f58a, aiconfigurator_core/systems"


class Precision(StrEnum):
    """Of weights, with the GEMM that it means, or of KV."""

    BF16 = "bf16"
    FP8 = "fp8"
    FP4 = "fp4"

    @property
    def weight_bytes(self) -> float:
        """Bytes of one value; MXFP4 has a scale byte for each 32 values of half a byte."""
        return {Precision.BF16: BF16_BYTES, Precision.FP8: 1.0, Precision.FP4: 0.5 + 1 / 32}[self]


@dataclass(frozen=True, slots=True)
class ModelShape:
    """A transformer; `ffn` is the width of one (expert's) gated MLP.

    `experts` 0 is a dense model; otherwise `experts_per_token` of them compute each token, in all
    layers. `attention_params` (of one layer), `kv_values` (of one token and layer) and
    `attention_flops_per_layer` are derived for grouped-query attention when 0.
    """

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int
    context_tokens: int = 131_072
    experts: int = 0
    experts_per_token: int = 0
    attention_params: int = 0
    kv_values: int = 0
    attention_flops_per_layer: int = 0

    @property
    def attention_params_total(self) -> int:
        """Attention parameters of all layers."""
        own = self.hidden * self.head_dim * (2 * self.heads + 2 * self.kv_heads)
        return self.layers * (self.attention_params or own)

    @property
    def mlp_params(self) -> int:
        """Parameters of one gated MLP in all layers: of one expert, in a mixture."""
        return self.layers * 3 * self.hidden * self.ffn

    @property
    def layer_params(self) -> int:
        """Parameters that compute one token, norms left out: the active ones of a mixture."""
        return self.attention_params_total + self.mlp_params * (self.experts_per_token or 1)

    @property
    def embedding_params(self) -> int:
        """Parameters of one embedding table (the LM head has as many)."""
        return self.vocab * self.hidden

    def kv_bytes_per_token(self, kv_bytes: float) -> float:
        """KV cache bytes of one token over all layers, before tensor parallelism splits them."""
        return self.layers * (self.kv_values or 2 * self.kv_heads * self.head_dim) * kv_bytes

    @property
    def attention_flops(self) -> int:
        """FLOPs of one query token against one context token."""
        return self.layers * (self.attention_flops_per_layer or 4 * self.heads * self.head_dim)

    def layer_bytes(self, weights: Precision, experts: float) -> float:
        """Bytes of the layers' weights with `experts` of a mixture; MXFP4 is for experts only."""
        apart = BF16_BYTES if weights is Precision.FP4 else weights.weight_bytes
        return (
            self.attention_params_total * apart + self.mlp_params * experts * weights.weight_bytes
        )


@dataclass(frozen=True, slots=True)
class GpuShape:
    """An accelerator's published peaks (bytes/s, FLOP/s, GiB, bytes/s one way).

    `fp8_flops` is the bf16 peak where there are no FP8 tensor cores; `token_budget` is vLLM's
    default of `max_num_batched_tokens` there.
    """

    bandwidth: float
    bf16_flops: float
    fp8_flops: float
    memory_gib: float
    link: float
    token_budget: int = 8192
    source: str = AICONFIGURATOR

    def gemm_flops(self, weights: Precision) -> float:
        """Peak of the GEMM; MXFP4 weights are widened to bf16 on the accelerators known here."""
        return self.fp8_flops if weights is Precision.FP8 else self.bf16_flops


LLAMA_8B: Final = ModelShape(32, 4096, 32, 8, 128, 14336, 128_256)
LLAMA_70B: Final = ModelShape(80, 8192, 64, 8, 128, 28672, 128_256)
QWEN3_32B: Final = ModelShape(64, 5120, 64, 8, 128, 25600, 151_936, context_tokens=40_960)
MODELS: Final[dict[str, ModelShape]] = {
    "llama-3.1-8b": LLAMA_8B,
    "llama-3.1-70b": LLAMA_70B,
    "qwen3-32b": QWEN3_32B,
    "gpt-oss-120b": ModelShape(
        36, 2880, 64, 8, 64, 2880, 201_088, experts=128, experts_per_token=4
    ),
    "minimax-m2.5": ModelShape(
        62, 3072, 48, 8, 128, 1536, 200_064, experts=256, experts_per_token=8
    ),
}
H100: Final = GpuShape(3.35e12, 989e12, 1978e12, 80, 450e9)
H200: Final = GpuShape(4.8e12, 989e12, 1978e12, 141, 450e9)
GPUS: Final[dict[str, GpuShape]] = {
    "a100": GpuShape(2.039e12, 312e12, 312e12, 80, 300e9, 2048),
    "h100": H100,
    "h200": H200,
    "b200": GpuShape(7.7e12, 2250e12, 4500e12, 180, 900e9, 16_384),
    "b300": GpuShape(7.75e12, 2250e12, 4500e12, 268.59, 900e9, 16_384),
    "l40s": GpuShape(0.864e12, 362.05e12, 733e12, 44.99, 32e9, 2048),
    "mi300x": GpuShape(
        5.3e12, 1307.4e12, 2614.9e12, 192, 448e9, 16_384, "alpharomercoma/MI300X-vs-H200@6077fdc"
    ),
}
