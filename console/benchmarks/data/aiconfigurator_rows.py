"""Ask aiconfigurator for TTFT and TPOT and write them as rows: run by an environment of its own.

    python3 -m venv .venv-aiconfigurator
    .venv-aiconfigurator/bin/pip install -r requirements-aiconfigurator.lock
    .venv-aiconfigurator/bin/python console/benchmarks/data/aiconfigurator_rows.py --jobs 2

It needs no network once installed, and takes a minute or two. The product never runs it:
what it writes comes with the product, and `capacity/simulation/tabled.py` is fitted to that.
"""

import argparse
import csv
import logging
import multiprocessing
import sys
from collections.abc import Iterator
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).parent
PUBLISHED = HERE / "vllm_silicon_sample.csv"
OUT = HERE / "aiconfigurator_rows.csv"
FIELDS = ("model", "gpu", "precision", "tp_size", "isl", "osl", "concurrency")
# Our names -> theirs; of a model also how wide its weights and KV are called there.
MODELS = {
    "llama-3.1-8b": "meta-llama/Meta-Llama-3.1-8B",
    "llama-3.1-70b": "meta-llama/Meta-Llama-3.1-70B",
    "qwen3-32b": "Qwen/Qwen3-32B",
    "gpt-oss-120b": "openai/gpt-oss-120b",
    "minimax-m2.5": "MiniMaxAI/MiniMax-M2.5",
}
SYSTEMS = {"a100": "a100_sxm", "h100": "h100_sxm", "h200": "h200_sxm", "b200": "b200_sxm"}
MIXTURES = ("gpt-oss-120b", "minimax-m2.5")
GRID = (
    ("llama-3.1-8b", ("bf16", "fp8"), (1, 2)),
    ("qwen3-32b", ("bf16", "fp8"), (1, 2, 4, 8)),
    ("llama-3.1-70b", ("bf16", "fp8"), (1, 2, 4, 8)),
    ("gpt-oss-120b", ("fp4",), (2, 4, 8)),
    ("minimax-m2.5", ("fp8",), (4, 8)),
)
SIZES = ((1024, 1024), (8192, 512))
CLIENTS = (1, 4, 16, 32, 64, 128)


class Key(NamedTuple):
    """One question: a pool under a closed loop of `clients`."""

    model: str
    gpu: str
    precision: str
    tp: int
    input_tokens: int
    output_tokens: int
    clients: int


def published() -> Iterator[Key]:
    """The questions that the published rows answer."""
    with PUBLISHED.open() as file:
        for row in csv.DictReader(file):
            model, gpu, precision, *numbers = (row[name] for name in FIELDS)
            yield Key(model, gpu, precision, *(int(one) for one in numbers))


def grid() -> Iterator[Key]:
    """Twelve questions a pool, of every model on every accelerator."""
    for model, precisions, tps in GRID:
        for gpu in SYSTEMS:
            for precision in precisions:
                if gpu == "a100" and precision != "bf16":
                    continue  # it has no FP8 tensor cores, and no measured tables of them
                for tp in tps:
                    for size in SIZES:
                        for clients in CLIENTS:
                            yield Key(model, gpu, precision, tp, *size, clients)


def asked(key: Key) -> dict[str, Any]:
    """Arguments of `cli_estimate`."""
    mode = {"bf16": "bfloat16", "fp8": "fp8"}.get(key.precision)
    is_fp8_kv = key.model == "llama-3.1-70b" and key.precision == "fp8"
    more: dict[str, Any] = {"gemm_quant_mode": mode} if mode else {}
    if key.model in MIXTURES:
        more |= {"moe_tp_size": key.tp, "moe_ep_size": 1}
        if mode:
            more["moe_quant_mode"] = mode
    if mode:
        more["kvcache_quant_mode"] = "fp8" if is_fp8_kv else "bfloat16"
    return {
        "model_path": MODELS[key.model],
        "system_name": SYSTEMS[key.gpu],
        "backend_name": "vllm",
        "tp_size": key.tp,
        "batch_size": key.clients,
        "isl": key.input_tokens,
        "osl": key.output_tokens,
        "prefix": 0,
        **more,
    }


@cache
def estimator() -> Any:
    """`cli_estimate`, kept from listing all its tables anew for each row (seconds of CPU)."""
    logging.disable(logging.CRITICAL)
    from aiconfigurator.cli.api import cli_estimate  # noqa: PLC0415 - not in the product
    from aiconfigurator_core.sdk import perf_database  # noqa: PLC0415

    perf_database.get_supported_databases = cache(perf_database.get_supported_databases)
    return cli_estimate


def answer(key: Key) -> tuple[Key, float, float, str]:
    """TTFT and TPOT in milliseconds, or why there are none."""
    try:
        found = estimator()(**asked(key))
    except Exception as error:  # noqa: BLE001 - it raises whatever its tables lack
        return key, 0.0, 0.0, f"{type(error).__name__}: {error}"[:200]
    if found.kv_cache_warning:
        return key, 0.0, 0.0, str(found.kv_cache_warning)[:200]
    return key, float(found.ttft), float(found.tpot), ""


def main() -> int:
    """Write every row that there is an answer for; the others to stderr with the reason."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--out", type=Path, default=OUT)
    given = parser.parse_args()
    keys = sorted({*published(), *grid()})
    with (
        given.out.open("w", newline="") as file,
        multiprocessing.get_context("spawn").Pool(given.jobs) as workers,
    ):
        command = "console/benchmarks/data/aiconfigurator_rows.py"
        file.write(f"# aiconfigurator {version('aiconfigurator')}, backend vllm; by {command}\n")
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow((*FIELDS, "ttft_ms", "tpot_ms"))
        for at, (key, ttft, tpot, why) in enumerate(workers.imap(answer, keys, 4), 1):
            if why:
                sys.stderr.write(f"{at}/{len(keys)} {'/'.join(map(str, key))}: {why}\n")
            else:
                rows.writerow((*key, f"{ttft:.6g}", f"{tpot:.6g}"))
                file.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
