"""How far the step times are from measured engines, and each pool's own times fitted to them.

A row is a published measurement of vLLM under a closed loop of C clients, each with I input and O
output tokens. In its steady state a step decodes D = C sequences over K = C*(I + O/2) tokens, and
computes P = C*I/O prompt tokens with A = P*I/2: TPOT is that step's time. C is at most what the KV
holds.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from capacity.simulation.fitting import relative_fit
from capacity.simulation.hardware import GPUS, MODELS, Precision
from capacity.simulation.profiles import StepTimes, touched_ratio
from capacity.simulation.roofline import PRIOR, Constants, Roofline, kv_tokens, roofline

PREFILL_LEAST: Final = 0.25  # of the prior's c: below it the rows did not tell prefill apart
PULL_ROWS: Final = 0.5  # how many rows the prior weighs in a pool's own fit
POOL_ROWS_LEAST: Final = 8  # five terms need more than five rows
LONGEST_WAIT_S: Final = 10.0  # TTFT above it: most of the clients waited, D is not C
# The fit's own ground: dense models of 32 billion parameters and more.
PROVEN: Final = (("qwen3-32b", "h100"), ("llama-3.1-70b", "h100"), ("llama-3.1-70b", "h200"))


@dataclass(frozen=True, slots=True)
class SiliconRow:
    """One measurement."""

    model: str
    gpu: str
    weights: Precision
    kv: Precision
    tp: int
    input_tokens: int
    output_tokens: int
    clients: int
    ttft_s: float
    tpot_s: float

    @property
    def group(self) -> tuple[str, str]:
        """Model and accelerator: what is held out as a whole."""
        return self.model, self.gpu

    @property
    def pool(self) -> str:
        """Name of its pool: `model/gpu/tpN/weights`."""
        return f"{self.model}/{self.gpu}/tp{self.tp}/{self.weights.value}"

    def roofline(self) -> Roofline:
        """The hardware's own times."""
        return roofline(
            MODELS[self.model], GPUS[self.gpu], tp=self.tp, weights=self.weights, kv=self.kv
        )

    def step(self) -> tuple[float, float, float, float]:
        """P, D, K and A of its steady state."""
        middle = self.input_tokens + self.output_tokens / 2
        room = kv_tokens(
            MODELS[self.model], GPUS[self.gpu], tp=self.tp, weights=self.weights, kv=self.kv
        )
        decodes = min(float(self.clients), room / middle)
        prefill = decodes * self.input_tokens / self.output_tokens
        return prefill, decodes, decodes * middle, prefill * self.input_tokens / 2


@dataclass(frozen=True, slots=True)
class Errors:
    """Relative errors of TPOT over some rows: mean and 90th percentile of their size, and bias."""

    rows: int
    mean: float
    p90: float
    bias: float

    @classmethod
    def of(cls, errors: Sequence[float]) -> "Errors":
        """Of signed relative errors, at least one."""
        sizes = sorted(abs(one) for one in errors)
        place = min(len(sizes) - 1, int(0.9 * len(sizes)))
        return cls(len(sizes), sum(sizes) / len(sizes), sizes[place], sum(errors) / len(errors))


def usable(rows: Iterable[SiliconRow]) -> list[SiliconRow]:
    """Rows whose clients mostly ran, each measurement once."""
    found: dict[tuple[object, ...], SiliconRow] = {}
    for row in rows:
        name = (row.pool, row.input_tokens, row.output_tokens, row.clients)
        if row.ttft_s <= LONGEST_WAIT_S:
            found.setdefault(name, row)
    return list(found.values())


def fitted_constants(rows: Sequence[SiliconRow]) -> Constants:
    """The six constants by mean relative error over the rows."""
    found = relative_fit(
        [row.roofline().row(*row.step()) for row in rows],
        [row.tpot_s for row in rows],
        is_robust=True,
    )
    return Constants(*found)


def held_out(rows: Sequence[SiliconRow]) -> dict[tuple[str, str], list[float]]:
    """Signed errors of each group by constants fitted to the other groups of the proven ground."""
    found: dict[tuple[str, str], list[float]] = {}
    for group in dict.fromkeys(row.group for row in rows):
        others = [row for row in rows if row.group in PROVEN and row.group != group]
        times = fitted_constants(others)
        own = [row for row in rows if row.group == group]
        found[group] = [
            predicted_s(row, row.roofline().times(times)) / row.tpot_s - 1 for row in own
        ]
    return found


def is_proven_ground(model: str) -> bool:
    """Whether the prior's constants are proven for models of its kind: large dense ones."""
    return model in {known for known, _gpu in PROVEN}


def predicted_s(row: SiliconRow, times: StepTimes) -> float:
    """TPOT of a row by step times; experts are touched by the step's decodes."""
    prefill, decodes, context, attention = row.step()
    touched = times.expert_s * touched_ratio(times.expert_ratio, decodes)
    return (
        times.t0_s
        + touched
        + times.c_s * (prefill + decodes)
        + times.d_s * context
        + times.e_s * attention
    )


def pools_of(rows: Sequence[SiliconRow]) -> dict[str, list[SiliconRow]]:
    """Rows by pool, where there are enough for a fit of its own."""
    found: dict[str, list[SiliconRow]] = {}
    for row in rows:
        found.setdefault(row.pool, []).append(row)
    return {name: own for name, own in found.items() if len(own) >= POOL_ROWS_LEAST}


def left_one_out(rows: Sequence[SiliconRow]) -> list[float]:
    """Signed error of each row of one pool by times calibrated on its other rows."""
    return [
        predicted_s(row, calibrated([*rows[:at], *rows[at + 1 :]])) / row.tpot_s - 1
        for at, row in enumerate(rows)
    ]


def tellable(rows: Sequence[SiliconRow]) -> bool:
    """Whether a pool's rows tell what a prompt token costs: TPOT alone need not."""
    return calibrated(rows).c_s >= PREFILL_LEAST * rows[0].roofline().times(PRIOR).c_s


def calibrated(rows: Sequence[SiliconRow]) -> StepTimes:
    """Step times of one pool by its own rows, drawn a little to the prior."""
    prior = rows[0].roofline().times(PRIOR)
    table = []
    for row in rows:
        prefill, decodes, context, attention = row.step()
        line = [1.0, prefill + decodes, context, attention]
        if prior.expert_s:
            line.append(touched_ratio(prior.expert_ratio, decodes))
        table.append(line)
    pull = [prior.t0_s, prior.c_s, prior.d_s, prior.e_s]
    found = relative_fit(
        table,
        [row.tpot_s for row in rows],
        prior=[*pull, prior.expert_s] if prior.expert_s else pull,
        prior_rows=PULL_ROWS,
        is_robust=True,
    )
    t0_s, c_s, d_s, e_s, *expert = found
    return StepTimes(
        t0_s, c_s, d_s, e_s, expert[0] if expert else 0.0, expert_ratio=prior.expert_ratio
    )
