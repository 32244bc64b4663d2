"""Step times of pools that others have measured, fitted by `silicon.calibrated`.

From `console/benchmarks/vllm_silicon_sample.csv`; a test fits them anew and compares. KV is FP8
for the 70B model, bf16 elsewhere.
"""

from typing import Final, NamedTuple

from capacity.simulation.profiles import StepTimes


class Measured(NamedTuple):
    """`error_ratio` is the mean error on rows left out of the fit, one at a time."""

    times: StepTimes
    rows: int
    error_ratio: float


MEASURED: Final[dict[str, Measured]] = {
    "gpt-oss-120b/h100/tp2/fp4": Measured(
        StepTimes(0.003704, 2.163e-05, 2.754e-09, 0, 0.009174, 0.03125), 15, 0.022
    ),
    "gpt-oss-120b/h100/tp4/fp4": Measured(
        StepTimes(0.003232, 1.196e-05, 1.812e-09, 0, 0.005488, 0.03125), 15, 0.075
    ),
    "gpt-oss-120b/h100/tp8/fp4": Measured(
        StepTimes(0.00316, 1.376e-05, 1.718e-09, 0, 0.002656, 0.03125), 15, 0.087
    ),
    "llama-3.1-70b/h100/tp2/fp8": Measured(
        StepTimes(0.01656, 5.327e-05, 5.586e-08, 4.522e-09), 13, 0.016
    ),
    "llama-3.1-70b/h100/tp4/fp8": Measured(
        StepTimes(0.01109, 4.505e-05, 2.802e-08, 2.799e-10), 15, 0.029
    ),
    "llama-3.1-70b/h100/tp8/fp8": Measured(StepTimes(0.008803, 2.77e-05, 1.775e-08, 0), 15, 0.044),
    "llama-3.1-70b/h200/tp1/fp8": Measured(
        StepTimes(0.02042, 8.201e-05, 6.435e-08, 1.206e-08), 14, 0.048
    ),
    "llama-3.1-70b/h200/tp2/fp8": Measured(
        StepTimes(0.01321, 4.908e-05, 3.222e-08, 5.688e-09), 15, 0.053
    ),
    "llama-3.1-70b/h200/tp4/fp8": Measured(
        StepTimes(0.00921, 3.894e-05, 1.974e-08, 1.538e-09), 15, 0.054
    ),
    "llama-3.1-70b/h200/tp8/fp8": Measured(StepTimes(0.007862, 2.591e-05, 1.194e-08, 0), 15, 0.044),
    "llama-3.1-8b/h200/tp1/fp8": Measured(
        StepTimes(0.004514, 2.193e-06, 2.478e-08, 4.205e-10), 10, 0.126
    ),
    "minimax-m2.5/h200/tp4/fp8": Measured(
        StepTimes(0.01035, 2.831e-05, 1.347e-08, 0, 0.01176, 0.03125), 15, 0.023
    ),
    "minimax-m2.5/h200/tp8/fp8": Measured(
        StepTimes(0.006676, 1.622e-05, 4.404e-09, 0, 0.008799, 0.03125), 18, 0.051
    ),
    "qwen3-32b/h100/tp2/bf16": Measured(StepTimes(0.014, 4.959e-05, 5.677e-08, 0), 27, 0.029),
    "qwen3-32b/h100/tp4/bf16": Measured(StepTimes(0.009593, 3.042e-05, 2.94e-08, 0), 30, 0.037),
    "qwen3-32b/h100/tp8/bf16": Measured(StepTimes(0.007416, 1.915e-05, 1.874e-08, 0), 30, 0.058),
}
