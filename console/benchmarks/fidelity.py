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
from capacity.simulation.tabled import VERSION

SAMPLE: Final = Path(__file__).parent / "data" / "vllm_silicon_sample.csv"
TABLED: Final = Path(__file__).parent / "data" / "aiconfigurator_rows.csv"
BEFORE_MOST: Final = 0.10
AFTER_MOST: Final = 0.05


def silicon_rows() -> list[SiliconRow]:
    """The published rows, all of them."""
    with SAMPLE.open() as file:
        return [_row(fields) for fields in csv.DictReader(file)]


def tabled_rows() -> list[SiliconRow]:
    """What aiconfigurator says: of the published rows' own questions, and of pools beyond them."""
    with TABLED.open() as file:
        lines = (line for line in file if not line.startswith("#"))
        return [_row(fields) for fields in csv.DictReader(lines)]


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
        "aiconfigurator": _beside(kept, groups),
    }


def _beside(
    kept: Sequence[SiliconRow], groups: dict[tuple[str, str], list[float]]
) -> dict[str, Any]:
    """Errors of aiconfigurator on the published rows that it has an answer for, and of ours.

    Ours is the held out one on the same groups. The rows are published by its makers, who may have
    checked their tables against them.
    """
    said = {_question(row): row for row in tabled_rows()}
    pairs = [(row, said[_question(row)]) for row in kept if _question(row) in said]
    tpot: dict[tuple[str, str], list[float]] = {}
    for row, one in pairs:
        tpot.setdefault(row.group, []).append(one.tpot_s / row.tpot_s - 1)
    proven = [error for group in PROVEN for error in tpot[group]]
    return {
        "version": VERSION,
        "rows": len(pairs),
        "proven": asdict(Errors.of(proven)),
        "ttft": asdict(Errors.of([one.ttft_s / row.ttft_s - 1 for row, one in pairs])),
        "groups": {
            "/".join(group): {
                "aiconfigurator": asdict(Errors.of(errors)),
                "prior_held_out": asdict(Errors.of(groups[group])),
            }
            for group, errors in sorted(tpot.items())
        },
    }


def _question(row: SiliconRow) -> tuple[object, ...]:
    return row.pool, row.input_tokens, row.output_tokens, row.clients
