"""What the carbon is, in sentences."""

from collections.abc import Iterator, Sequence

from django.urls import reverse

from console.web import units
from console.web.answers import Answer, NextStep
from telemetry.economics.rules import Economics, PoolCarbon

HOUR_S = 3600
IDLE = 0.5  # of a pool's GPU time not used for tasks with an outcome: worth a look


def carbon_answer(found: Economics, *, may_act: bool) -> Answer:
    """The answer to "what is the carbon"."""
    total, missing = found.footprint, [one for one in found.pools if one.missing]
    hours = f"{found.gpu_s / HOUR_S:,.1f} GPU-h"
    if not found.gpu_s:
        fleet = NextStep("Open fleet", reverse("fleet"))
        return Answer("No replica held a GPU in this time.", steps=(fleet,))
    if total is None:
        headline = f"Unknown: {hours} were held, and no pool has all of its inputs stated."
    else:
        headline = f"{total.total_g:,.0f} g CO2e for {hours}."
    is_whole = total is not None and not missing
    return Answer(
        headline,
        tuple(_reasons(found, missing)),
        tuple(_steps(found, missing, may_act=may_act)),
        "ok" if is_whole else "warn",
        "all inputs stated" if is_whole else "inputs missing",
    )


def _reasons(found: Economics, missing: Sequence[PoolCarbon]) -> Iterator[str]:
    total = found.footprint
    known = [one for one in found.pools if one.footprint is not None]
    if total is not None and total.total_g and len(known) > 1:
        one = max(known, key=_grams)
        yield (
            f"Pool {one.facts.pool} emits most: {_grams(one):,.0f} g,"
            f" {units.percent(_grams(one) / total.total_g)} of it."
        )
    if found.task_g is not None and found.task_gpu_s is not None:
        yield (
            f"A task that ended took {found.task_gpu_s:.1f} GPU-s and {found.task_g:.2f} g:"
            f" the rest is other work and idle time."
        )
    for one in missing:
        hours = one.facts.gpu_s / HOUR_S
        yield f"Pool {one.facts.pool} is left out ({hours:,.1f} GPU-h): no {one.missing} is stated."


def _steps(found: Economics, missing: Sequence[PoolCarbon], *, may_act: bool) -> Iterator[NextStep]:
    if missing and may_act:
        if any("grid" in one.missing for one in missing):
            yield NextStep("State a grid", reverse("state_grid"))
        if any("power" in one.missing for one in missing):
            yield NextStep("State a power", reverse("state_power"))
    used = [one.task_gpu_s / one.facts.gpu_s for one in found.pools if one.facts.gpu_s]
    if any(ratio < IDLE for ratio in used):
        yield NextStep("See how few replicas are needed", reverse("forecasts"))
    yield NextStep("Open fleet", reverse("fleet"))


def _grams(one: PoolCarbon) -> float:
    return one.footprint.total_g if one.footprint is not None else 0.0
