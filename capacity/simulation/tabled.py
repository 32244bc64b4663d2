"""Step times fitted to what aiconfigurator 0.12.0 says of vLLM, by `silicon.calibrated`.

From `console/benchmarks/data/aiconfigurator_rows.csv` (how it is made: the README beside it); a
test fits them anew and compares. Nothing here was measured by us, nor on the pool itself:
aiconfigurator adds up kernel times that its makers measured on each accelerator.
"""

from typing import Final

from capacity.simulation.measured import Measured
from capacity.simulation.profiles import StepTimes

VERSION: Final = "0.12.0"
# `error_ratio` is how far the times are from aiconfigurator's own rows, each left out of its fit.
TABLED: Final[dict[str, Measured]] = {
    "gpt-oss-120b/b200/tp2/fp4": Measured(
        StepTimes(0.002399, 2.487e-06, 1.789e-08, 0, 0.005218, 0.03125), 12, 0.076
    ),
    "gpt-oss-120b/b200/tp8/fp4": Measured(
        StepTimes(0.002181, 1.8e-06, 6.993e-09, 0, 0.002868, 0.03125), 12, 0.024
    ),
    "gpt-oss-120b/h100/tp2/fp4": Measured(
        StepTimes(0.003639, 1.412e-05, 4.55e-09, 0, 0.01052, 0.03125), 24, 0.045
    ),
    "gpt-oss-120b/h100/tp4/fp4": Measured(
        StepTimes(0.003075, 8.499e-06, 4.316e-09, 0, 0.005029, 0.03125), 26, 0.043
    ),
    "gpt-oss-120b/h100/tp8/fp4": Measured(
        StepTimes(0.002944, 6.301e-06, 2.007e-09, 0, 0.003161, 0.03125), 26, 0.026
    ),
    "gpt-oss-120b/h200/tp2/fp4": Measured(
        StepTimes(0.003208, 6.764e-06, 1.753e-08, 0, 0.01029, 0.03125), 12, 0.049
    ),
    "gpt-oss-120b/h200/tp4/fp4": Measured(
        StepTimes(0.003036, 3.328e-06, 1.297e-08, 0, 0.00457, 0.03125), 12, 0.023
    ),
    "gpt-oss-120b/h200/tp8/fp4": Measured(
        StepTimes(0.002964, 4.805e-06, 3.601e-09, 0, 0.002788, 0.03125), 12, 0.020
    ),
    "llama-3.1-70b/a100/tp4/bf16": Measured(
        StepTimes(0.02773, 0.0001429, 2.864e-08, 8.391e-09), 10, 0.030
    ),
    "llama-3.1-70b/a100/tp8/bf16": Measured(
        StepTimes(0.0173, 9.548e-05, 1.5e-08, 2.973e-09), 12, 0.026
    ),
    "llama-3.1-70b/b200/tp1/fp8": Measured(
        StepTimes(0.01643, 3.424e-05, 2.06e-08, 8.413e-09), 11, 0.075
    ),
    "llama-3.1-70b/b200/tp2/bf16": Measured(
        StepTimes(0.01412, 4.21e-05, 2.223e-08, 4.002e-09), 11, 0.015
    ),
    "llama-3.1-70b/b200/tp2/fp8": Measured(
        StepTimes(0.01172, 2.759e-05, 1.77e-08, 2.822e-09), 12, 0.061
    ),
    "llama-3.1-70b/b200/tp4/bf16": Measured(
        StepTimes(0.008925, 2.951e-05, 1.391e-08, 7.949e-10), 12, 0.018
    ),
    "llama-3.1-70b/b200/tp4/fp8": Measured(StepTimes(0.011, 1.096e-05, 0, 4.399e-09), 12, 0.155),
    "llama-3.1-70b/b200/tp8/bf16": Measured(
        StepTimes(0.00675, 2.192e-05, 4.015e-09, 5.467e-10), 12, 0.079
    ),
    "llama-3.1-70b/b200/tp8/fp8": Measured(StepTimes(0.008908, 1.256e-05, 0, 2.558e-09), 12, 0.094),
    "llama-3.1-70b/h100/tp2/fp8": Measured(
        StepTimes(0.01725, 6.606e-05, 2.276e-08, 2.251e-09), 19, 0.016
    ),
    "llama-3.1-70b/h100/tp4/bf16": Measured(
        StepTimes(0.01484, 5.679e-05, 1.183e-08, 4.854e-09), 10, 0.020
    ),
    "llama-3.1-70b/h100/tp4/fp8": Measured(StepTimes(0.01085, 4.874e-05, 1.267e-08, 0), 23, 0.018),
    "llama-3.1-70b/h100/tp8/bf16": Measured(StepTimes(0.01008, 4.035e-05, 0, 1.658e-09), 12, 0.015),
    "llama-3.1-70b/h100/tp8/fp8": Measured(StepTimes(0.008259, 3.349e-05, 8.092e-09, 0), 23, 0.023),
    "llama-3.1-70b/h200/tp1/fp8": Measured(
        StepTimes(0.02194, 8.452e-05, 6.139e-08, 7.549e-09), 19, 0.033
    ),
    "llama-3.1-70b/h200/tp2/bf16": Measured(
        StepTimes(0.02095, 7.827e-05, 9.196e-09, 1.116e-08), 10, 0.024
    ),
    "llama-3.1-70b/h200/tp2/fp8": Measured(
        StepTimes(0.01397, 6.289e-05, 2.013e-08, 2.579e-09), 23, 0.022
    ),
    "llama-3.1-70b/h200/tp4/bf16": Measured(
        StepTimes(0.01213, 5.469e-05, 1.292e-09, 4.399e-09), 12, 0.017
    ),
    "llama-3.1-70b/h200/tp4/fp8": Measured(
        StepTimes(0.009342, 4.659e-05, 1.09e-08, 1.535e-10), 23, 0.021
    ),
    "llama-3.1-70b/h200/tp8/bf16": Measured(
        StepTimes(0.008239, 3.722e-05, 0, 1.781e-09), 12, 0.028
    ),
    "llama-3.1-70b/h200/tp8/fp8": Measured(StepTimes(0.007442, 3.179e-05, 7.168e-09, 0), 23, 0.023),
    "llama-3.1-8b/a100/tp1/bf16": Measured(
        StepTimes(0.01159, 5.147e-05, 5.911e-08, 6.171e-09), 10, 0.037
    ),
    "llama-3.1-8b/a100/tp2/bf16": Measured(
        StepTimes(0.006703, 3.241e-05, 3.474e-08, 2.71e-09), 11, 0.030
    ),
    "llama-3.1-8b/b200/tp1/bf16": Measured(
        StepTimes(0.003424, 8.11e-06, 1.577e-08, 1.094e-09), 12, 0.015
    ),
    "llama-3.1-8b/b200/tp1/fp8": Measured(
        StepTimes(0.003216, 5.54e-06, 1.683e-08, 1.013e-09), 12, 0.083
    ),
    "llama-3.1-8b/b200/tp2/bf16": Measured(
        StepTimes(0.002657, 6.121e-06, 9.654e-09, 1.825e-10), 12, 0.020
    ),
    "llama-3.1-8b/b200/tp2/fp8": Measured(
        StepTimes(0.002647, 4.845e-06, 9.987e-09, 2.668e-10), 12, 0.086
    ),
    "llama-3.1-8b/h100/tp1/bf16": Measured(
        StepTimes(0.006351, 1.922e-05, 3.659e-08, 2.051e-09), 10, 0.052
    ),
    "llama-3.1-8b/h100/tp1/fp8": Measured(
        StepTimes(0.004347, 1.442e-05, 4.145e-08, 1.109e-09), 10, 0.039
    ),
    "llama-3.1-8b/h100/tp2/bf16": Measured(
        StepTimes(0.004009, 1.229e-05, 1.766e-08, 9.209e-10), 11, 0.028
    ),
    "llama-3.1-8b/h100/tp2/fp8": Measured(
        StepTimes(0.003192, 1.014e-05, 2.108e-08, 4.157e-10), 11, 0.020
    ),
    "llama-3.1-8b/h200/tp1/bf16": Measured(
        StepTimes(0.004878, 1.718e-05, 2.543e-08, 2.23e-09), 11, 0.031
    ),
    "llama-3.1-8b/h200/tp1/fp8": Measured(
        StepTimes(0.003712, 1.541e-05, 2.772e-08, 1.667e-10), 21, 0.033
    ),
    "llama-3.1-8b/h200/tp2/bf16": Measured(
        StepTimes(0.003348, 1.136e-05, 1.211e-08, 9.255e-10), 12, 0.015
    ),
    "llama-3.1-8b/h200/tp2/fp8": Measured(
        StepTimes(0.002831, 1.08e-05, 1.431e-08, 4.268e-11), 17, 0.027
    ),
    "minimax-m2.5/b200/tp4/fp8": Measured(
        StepTimes(0.004396, 4.354e-06, 2.447e-08, 0, 0.01047, 0.03125), 12, 0.045
    ),
    "minimax-m2.5/h200/tp4/fp8": Measured(
        StepTimes(0.004497, 1.639e-05, 1.318e-08, 0, 0.01366, 0.03125), 23, 0.031
    ),
    "minimax-m2.5/h200/tp8/fp8": Measured(
        StepTimes(0.004412, 1.304e-05, 5.861e-09, 1.833e-10, 0.008857, 0.03125), 25, 0.029
    ),
    "qwen3-32b/a100/tp2/bf16": Measured(
        StepTimes(0.02511, 0.0001137, 5.55e-08, 1.113e-08), 10, 0.013
    ),
    "qwen3-32b/a100/tp4/bf16": Measured(
        StepTimes(0.01424, 7.13e-05, 3.584e-08, 3.768e-09), 11, 0.036
    ),
    "qwen3-32b/a100/tp8/bf16": Measured(
        StepTimes(0.009045, 4.798e-05, 1.956e-08, 1.42e-09), 12, 0.021
    ),
    "qwen3-32b/b200/tp1/bf16": Measured(
        StepTimes(0.01262, 3.085e-05, 2.884e-08, 5.823e-09), 10, 0.015
    ),
    "qwen3-32b/b200/tp1/fp8": Measured(
        StepTimes(0.009466, 2.063e-05, 3.738e-08, 3.13e-09), 10, 0.117
    ),
    "qwen3-32b/b200/tp2/bf16": Measured(
        StepTimes(0.007803, 2.129e-05, 2.047e-08, 1.41e-09), 11, 0.016
    ),
    "qwen3-32b/b200/tp2/fp8": Measured(
        StepTimes(0.006839, 1.589e-05, 2.527e-08, 9.33e-10), 12, 0.084
    ),
    "qwen3-32b/b200/tp4/bf16": Measured(
        StepTimes(0.005679, 1.478e-05, 1.165e-08, 2.711e-10), 12, 0.019
    ),
    "qwen3-32b/b200/tp4/fp8": Measured(
        StepTimes(0.006022, 1.186e-05, 1.278e-08, 2.236e-10), 12, 0.073
    ),
    "qwen3-32b/b200/tp8/bf16": Measured(StepTimes(0.004331, 1.027e-05, 9.766e-09, 0), 12, 0.091),
    "qwen3-32b/b200/tp8/fp8": Measured(
        StepTimes(0.00573, 9.559e-06, 3.99e-09, 6.69e-10), 12, 0.141
    ),
    "qwen3-32b/h100/tp1/fp8": Measured(
        StepTimes(0.01544, 1.452e-05, 1.305e-07, 7.982e-09), 9, 0.043
    ),
    "qwen3-32b/h100/tp2/bf16": Measured(
        StepTimes(0.01342, 4.748e-05, 3.947e-08, 2.407e-09), 32, 0.020
    ),
    "qwen3-32b/h100/tp2/fp8": Measured(
        StepTimes(0.009647, 2.87e-05, 4.735e-08, 2.52e-09), 11, 0.019
    ),
    "qwen3-32b/h100/tp4/bf16": Measured(
        StepTimes(0.008269, 2.974e-05, 2.006e-08, 3.741e-10), 37, 0.027
    ),
    "qwen3-32b/h100/tp4/fp8": Measured(
        StepTimes(0.006477, 2.429e-05, 2.508e-08, 2.483e-10), 11, 0.021
    ),
    "qwen3-32b/h100/tp8/bf16": Measured(StepTimes(0.005733, 2.045e-05, 1.049e-08, 0), 38, 0.025),
    "qwen3-32b/h100/tp8/fp8": Measured(StepTimes(0.005008, 1.642e-05, 1.663e-08, 0), 13, 0.019),
    "qwen3-32b/h200/tp1/bf16": Measured(StepTimes(0.0188, 6.941e-05, 5.19e-08, 1.04e-08), 8, 0.061),
    "qwen3-32b/h200/tp1/fp8": Measured(
        StepTimes(0.01189, 4.39e-05, 6.642e-08, 4.685e-09), 10, 0.043
    ),
    "qwen3-32b/h200/tp2/bf16": Measured(
        StepTimes(0.01078, 4.072e-05, 2.243e-08, 4.618e-09), 11, 0.020
    ),
    "qwen3-32b/h200/tp2/fp8": Measured(
        StepTimes(0.00814, 2.892e-05, 3.314e-08, 2.007e-09), 11, 0.020
    ),
    "qwen3-32b/h200/tp4/bf16": Measured(
        StepTimes(0.00691, 2.804e-05, 1.094e-08, 1.761e-09), 12, 0.014
    ),
    "qwen3-32b/h200/tp4/fp8": Measured(
        StepTimes(0.005812, 2.262e-05, 1.923e-08, 3.509e-11), 12, 0.022
    ),
    "qwen3-32b/h200/tp8/bf16": Measured(
        StepTimes(0.005092, 2.105e-05, 4.069e-09, 6.177e-11), 12, 0.018
    ),
    "qwen3-32b/h200/tp8/fp8": Measured(StepTimes(0.004743, 1.365e-05, 1.583e-08, 0), 12, 0.022),
}
