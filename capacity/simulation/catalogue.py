"""Built-in profiles by name, and `estimate` for a model on accelerators.

A name is one of `PROFILES`, or `model/gpu/tpN/weights`: `qwen3-32b/h100/tp4/bf16`. Where published
measurements of that pool exist, its times are fitted to them (`measured`). Elsewhere they are what
aiconfigurator says (`tabled`) or the prior of `roofline`, whichever was nearer to measurements of
such models; no measurement has verified them there.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from capacity.simulation.hardware import (
    GPUS,
    H100,
    H200,
    LLAMA_8B,
    LLAMA_70B,
    MODELS,
    QWEN3_32B,
    GpuShape,
    ModelShape,
    Precision,
)
from capacity.simulation.measured import MEASURED
from capacity.simulation.profiles import EngineProfile, StepTimes, UnknownProfileError
from capacity.simulation.roofline import profile_of
from capacity.simulation.silicon import is_proven_ground
from capacity.simulation.tabled import TABLED, VERSION

MOST_TP: Final = 64


class Origin(StrEnum):
    """Where an estimate's step times come from."""

    MEASURED = "measured"
    AICONFIGURATOR = "aiconfigurator"
    PRIOR = "prior"
    EXACT = "exact"


@dataclass(frozen=True, slots=True)
class Estimate:
    """A profile and where it comes from; `error_ratio` is None where nothing was measured.

    The error is the mean relative one of TPOT on rows that the fit did not see.
    """

    profile: EngineProfile
    source: str
    error_ratio: float | None
    origin: Origin = Origin.PRIOR


def estimate(
    model: str,
    gpu: str,
    *,
    tp: int,
    weights: Precision,
    kv: Precision | None = None,
    origin: Origin | None = None,
) -> Estimate:
    """Profile of a known model on `tp` known accelerators; KV has the measured pool's precision.

    `origin` asks for one of them, else it is the best there is. Raises `UnknownProfileError` naming
    what there is, also when the weights do not fit.
    """
    if model not in MODELS or gpu not in GPUS or not 1 <= tp <= MOST_TP:
        raise UnknownProfileError(
            f"no estimate for {model!r} on {tp} x {gpu!r}: models {', '.join(MODELS)}; "
            f"accelerators {', '.join(GPUS)}; 1 to {MOST_TP} of them"
        )
    name = f"{model}/{gpu}/tp{tp}/{weights.value}"
    own_kv = kv_of(model, weights)
    is_own = kv in (None, own_kv)
    chosen = _best(name, model) if origin is None and is_own else origin or Origin.PRIOR
    table = {Origin.MEASURED: MEASURED, Origin.AICONFIGURATOR: TABLED}.get(chosen, {})
    found = table.get(name)
    if found is None and chosen is not Origin.PRIOR:
        raise UnknownProfileError(f"{name}: no times of origin {chosen.value}")
    profile = profile_of(
        name,
        MODELS[model],
        GPUS[gpu],
        tp=tp,
        weights=weights,
        kv=own_kv if kv is None else kv,
        times=found.times if found else None,
    )
    if not profile.kv_blocks:
        raise UnknownProfileError(f"{name}: its weights leave no room for KV, take more of them")
    if found is None:
        return Estimate(profile, f"prior, unverified ({GPUS[gpu].source})", None)
    if chosen is Origin.AICONFIGURATOR:
        return Estimate(profile, f"aiconfigurator {VERSION}, unverified", None, chosen)
    source = f"fitted to {found.rows} published vLLM measurements"
    return Estimate(profile, source, found.error_ratio, chosen)


def _best(name: str, model: str) -> Origin:
    """Measured where it is; else, off the prior's proven ground, aiconfigurator was nearer."""
    if name in MEASURED:
        return Origin.MEASURED
    if name in TABLED and not is_proven_ground(model):
        return Origin.AICONFIGURATOR
    return Origin.PRIOR


def kv_of(model: str, weights: Precision) -> Precision:
    """Precision of KV in the published measurements: FP8 only for the 70B model in FP8."""
    is_fp8 = model == "llama-3.1-70b" and weights is Precision.FP8
    return Precision.FP8 if is_fp8 else Precision.BF16


def _derived(
    name: str, model: ModelShape, gpu: GpuShape, tp: int, both: Precision
) -> EngineProfile:
    return profile_of(name, model, gpu, tp=tp, weights=both, kv=both)


# Of no hardware: what the bundled engine itself runs by.
_EXACT: Final = {
    "demo": "the bundled engine's own",
    "reference": "rounded coefficients of the closed form checks",
}

PROFILES: Final[dict[str, EngineProfile]] = {
    profile.name: profile
    for profile in (
        _derived("8b-bf16-h100", LLAMA_8B, H100, 1, Precision.BF16),
        _derived("32b-bf16-h100-tp2", QWEN3_32B, H100, 2, Precision.BF16),
        _derived("70b-fp8-h100-tp4", LLAMA_70B, H100, 4, Precision.FP8),
        _derived("70b-fp8-h200-tp2", LLAMA_70B, H200, 2, Precision.FP8),
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
    """A profile by its name. Raises `UnknownProfileError` naming those there are."""
    return sourced(name).profile


def sourced(name: str) -> Estimate:
    """A profile by its name with where it comes from. Raises `UnknownProfileError`."""
    if name in PROFILES:
        if name in _EXACT:
            return Estimate(PROFILES[name], _EXACT[name], None, Origin.EXACT)
        return Estimate(PROFILES[name], "prior, unverified", None)
    match name.split("/"):
        case [model, gpu, tp, weights] if tp[2:].isdecimal() and weights in set(Precision):
            return estimate(model, gpu, tp=int(tp[2:]), weights=Precision(weights))
    known = ", ".join(sorted(PROFILES))
    raise UnknownProfileError(
        f"no engine profile {name!r}: choose one of {known}, or model/gpu/tpN/weights"
    )
