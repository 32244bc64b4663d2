"""Engine profiles: how long a step takes and how much KV fits, from hardware or by name.

Step time is `t = t0 + c*(P+D) + d*K + e*A` seconds: P prefill tokens computed in the step, D decode
sequences, K the sum of their context tokens, A the sum over prefill chunks of
`n * (context_before + n/2)`. The six constants in `derive` are a non-negative least squares fit to
318 published vLLM measurements (mean error of TPOT on held-out groups 10%): a prior, replaced by a
pool's own calibration.
"""

from dataclasses import dataclass, replace

GIB = 1024**3
MEMORY_SHARE = 0.92  # vLLM's default gpu_memory_utilization
OVERHEAD_BYTES_PER_GPU = 3.5 * GIB  # activations, graphs, communication buffers
BF16_BYTES = 2


class UnknownProfileError(LookupError):
    """No profile of that name is built in."""


@dataclass(frozen=True, slots=True)
class StepTimes:
    """The four terms of a step's time, in seconds (`d_s` and `e_s` per token and token squared)."""

    t0_s: float
    c_s: float
    d_s: float
    e_s: float

    def seconds(
        self, prefill_tokens: int, decodes: int, context_tokens: int, attention: float
    ) -> float:
        """Duration of a step over P, D, K and A."""
        return (
            self.t0_s
            + self.c_s * (prefill_tokens + decodes)
            + self.d_s * context_tokens
            + self.e_s * attention
        )

    def scaled(self, factor: float) -> "StepTimes":
        """The same engine `factor` times slower."""
        return StepTimes(
            self.t0_s * factor, self.c_s * factor, self.d_s * factor, self.e_s * factor
        )


@dataclass(frozen=True, slots=True)
class EngineProfile:
    """One replica: its step times and vLLM's own limits.

    `token_budget` is `max_num_batched_tokens`, `seats` is `max_num_seqs`; a prefill longer than
    `long_prefill_tokens` is cut to it while other requests exist (0: never).
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

    @property
    def kv_tokens(self) -> int:
        """KV capacity in tokens."""
        return self.kv_blocks * self.block_tokens

    def with_times(self, times: StepTimes) -> "EngineProfile":
        """The same replica with other step times."""
        return replace(self, times=times)


@dataclass(frozen=True, slots=True)
class ModelShape:
    """A dense transformer with grouped-query attention, as its `config.json` states it."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int

    @property
    def layer_params(self) -> int:
        """Parameters of all layers: attention and gated MLP, norms left out."""
        attention = self.hidden * self.head_dim * (2 * self.heads + 2 * self.kv_heads)
        return self.layers * (attention + 3 * self.hidden * self.ffn)

    @property
    def embedding_params(self) -> int:
        """Parameters of one embedding table (the LM head has as many)."""
        return self.vocab * self.hidden

    def kv_bytes_per_token(self, kv_bytes: int) -> int:
        """KV cache bytes of one token over all layers."""
        return 2 * self.layers * self.kv_heads * self.head_dim * kv_bytes

    @property
    def attention_flops(self) -> int:
        """FLOPs of one query token against one context token."""
        return 4 * self.layers * self.heads * self.head_dim


@dataclass(frozen=True, slots=True)
class GpuShape:
    """An accelerator's published peaks (bytes/s, FLOP/s, GiB, bytes/s one way)."""

    bandwidth: float
    bf16_flops: float
    fp8_flops: float
    memory_gib: int
    link: float


LLAMA_8B = ModelShape(32, 4096, 32, 8, 128, 14336, 128_256)
LLAMA_70B = ModelShape(80, 8192, 64, 8, 128, 28672, 128_256)
QWEN3_32B = ModelShape(64, 5120, 64, 8, 128, 25600, 151_936)
H100 = GpuShape(3.35e12, 989e12, 1978e12, 80, 450e9)
H200 = GpuShape(4.8e12, 989e12, 1978e12, 141, 450e9)


def derive(
    name: str,
    model: ModelShape,
    gpu: GpuShape,
    *,
    tp: int,
    weight_bytes: int,
    kv_bytes: int,
    context_tokens: int,
) -> EngineProfile:
    """Profile of `model` on `tp` GPUs with weights and KV of the given bytes per value.

    Embeddings and the LM head stay in bf16, as published fp8 checkpoints have them.
    """
    layer_bytes = model.layer_params * weight_bytes
    table_bytes = model.embedding_params * BF16_BYTES
    kv = model.kv_bytes_per_token(kv_bytes)
    flops = gpu.fp8_flops if weight_bytes == 1 else gpu.bf16_flops
    all_reduce = 2.84 * 8 * model.layers * model.hidden * ((tp - 1) / tp) / gpu.link
    times = StepTimes(
        t0_s=74e-6 * model.layers + 1.14 * (layer_bytes + table_bytes) / (tp * gpu.bandwidth),
        c_s=0.95 * 2 * model.layer_params / (tp * flops) + all_reduce,
        d_s=0.63 * kv / (tp * gpu.bandwidth),
        e_s=4.25 * model.attention_flops / (tp * gpu.bf16_flops),
    )
    memory = MEMORY_SHARE * gpu.memory_gib * GIB * tp
    free = memory - layer_bytes - 2 * table_bytes - tp * OVERHEAD_BYTES_PER_GPU
    block_tokens = 16
    return EngineProfile(
        name=name,
        times=times,
        kv_blocks=int(free / kv) // block_tokens,
        block_tokens=block_tokens,
        context_tokens=context_tokens,
    )


PROFILES: dict[str, EngineProfile] = {
    profile.name: profile
    for profile in (
        derive(
            "8b-bf16-h100",
            LLAMA_8B,
            H100,
            tp=1,
            weight_bytes=2,
            kv_bytes=2,
            context_tokens=131_072,
        ),
        derive(
            "32b-bf16-h100-tp2",
            QWEN3_32B,
            H100,
            tp=2,
            weight_bytes=2,
            kv_bytes=2,
            context_tokens=40_960,
        ),
        derive(
            "70b-fp8-h100-tp4",
            LLAMA_70B,
            H100,
            tp=4,
            weight_bytes=1,
            kv_bytes=1,
            context_tokens=131_072,
        ),
        derive(
            "70b-fp8-h200-tp2",
            LLAMA_70B,
            H200,
            tp=2,
            weight_bytes=1,
            kv_bytes=1,
            context_tokens=131_072,
        ),
        # The engine of decision-core's closed form checks: 8B on H100 with rounded coefficients.
        EngineProfile(
            name="reference",
            times=StepTimes(7.47e-3, 14.4e-6, 24.5e-9, 2.25e-9),
            kv_blocks=452_000 // 16,
        ),
        # No hardware: small and slow enough that a few requests a second fill it visibly and four
        # of them leave most of a laptop's two cores free.
        EngineProfile(
            name="demo",
            times=StepTimes(25e-3, 60e-6, 150e-9, 4e-9),
            kv_blocks=2048,
            token_budget=2048,
            seats=64,
            context_tokens=16_384,
        ),
    )
}


def named(name: str) -> EngineProfile:
    """A built-in profile. Raises `UnknownProfileError` naming those there are."""
    try:
        return PROFILES[name]
    except KeyError:
        known = ", ".join(sorted(PROFILES))
        raise UnknownProfileError(f"no engine profile {name!r}: choose one of {known}") from None
