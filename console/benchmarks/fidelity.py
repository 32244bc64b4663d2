"""How far the simulator is from what it models: `manage.py bench simulate --fidelity`.

TPOT of published measurements, by constants that never saw the model on that accelerator and by
times calibrated on the pool's other rows; the rows come with the product (`data/README.md`).
"""

import csv
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from capacity.simulation.catalogue import kv_of
from capacity.simulation.hardware import Precision
from capacity.simulation.silicon import (
    PROVEN,
    Errors,
    SiliconRow,
    held_out,
    left_one_out,
    pools_of,
    usable,
)

SAMPLE: Final = Path(__file__).parent / "data" / "vllm_silicon_sample.csv"
BEFORE_MOST: Final = 0.10
AFTER_MOST: Final = 0.05


def silicon_rows() -> list[SiliconRow]:
    """The published rows, all of them."""
    with SAMPLE.open() as file:
        return [_row(fields) for fields in csv.DictReader(file)]


def _row(fields: dict[str, str]) -> SiliconRow:
    weights = Precision(fields["precision"])
    return SiliconRow(
        model=fields["model"],
        gpu=fields["gpu"],
        weights=weights,
        kv=kv_of(fields["model"], weights),
        tp=int(fields["tp_size"]),
        input_tokens=int(fields["isl"]),
        output_tokens=int(fields["osl"]),
        clients=int(fields["concurrency"]),
        ttft_s=float(fields["ttft_ms"]) / 1e3,
        tpot_s=float(fields["tpot_ms"]) / 1e3,
    )


def silicon_fidelity(rows: Sequence[SiliconRow]) -> dict[str, Any]:
    """Errors of TPOT: `held_out` over the proven groups, `calibrated` over all pools, and each."""
    kept = usable(rows)
    groups = held_out(kept)
    pools = {name: left_one_out(own) for name, own in sorted(pools_of(kept).items())}
    before = Errors.of([one for group in PROVEN for one in groups[group]])
    after = Errors.of([one for own in pools.values() for one in own])
    return {
        "rows": len(rows),
        "rows_used": len(kept),
        "held_out": asdict(before),
        "held_out_most": BEFORE_MOST,
        "calibrated": asdict(after),
        "calibrated_most": AFTER_MOST,
        "holds": before.mean <= BEFORE_MOST and after.mean <= AFTER_MOST,
        "groups": {
            "/".join(group): {**asdict(Errors.of(own)), "is_proven": group in PROVEN}
            for group, own in sorted(groups.items())
        },
        "pools": {name: asdict(Errors.of(own)) for name, own in pools.items()},
    }
