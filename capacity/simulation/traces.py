"""Arrivals from traces: lines of a file in, arrivals in order of time out, one line at a time.

Forms: Azure LLM inference 2023, BurstGPT, Mooncake (with its prefix hashes), the arena slice with
its tenants, ServeGen (a rate and a gap distribution per client and bin), and our own shape rows.
"""

import csv
import json
from collections.abc import Iterable, Iterator
from datetime import datetime
from math import exp, gamma, log, sqrt
from typing import Final

from capacity.simulation.chance import Chance
from capacity.simulation.workload import Arrival, merged
from routing.contracts.enums import WorkClass
from routing.contracts.usage import ShapeRow
from routing.decision.prefix import BLOCK_BYTES

MOONCAKE_BLOCK: Final = 512  # tokens behind one hash
SHAPE_BLOCK: Final = BLOCK_BYTES // 4  # tokens behind one of our own
BIN_S: Final = 600.0
WINDOW_S: Final = 21_600.0
_PARTS_BITS: Final = 10


class TraceError(ValueError):
    """A line is not what its form says; names the line."""


def azure(lines: Iterable[str], tenant: str = "azure") -> Iterator[Arrival]:
    """`TIMESTAMP, ContextTokens, GeneratedTokens`; the first row is second 0."""
    start: datetime | None = None
    for row in _rows(lines):
        at = datetime.fromisoformat(_field(row, "TIMESTAMP")[:26])
        start = start or at
        yield Arrival(
            (at - start).total_seconds(),
            _tokens(row, "ContextTokens"),
            _tokens(row, "GeneratedTokens"),
            tenant,
        )


def burstgpt(lines: Iterable[str]) -> Iterator[Arrival]:
    """`Timestamp, Model, Request tokens, Response tokens, ...`; failed calls (no answer) are left.

    A model is a tenant.
    """
    start: float | None = None
    for row in _rows(lines):
        at_s = _number(row, "Timestamp")
        start = at_s if start is None else start
        if _number(row, "Response tokens") >= 1:
            yield Arrival(
                at_s - start,
                _tokens(row, "Request tokens"),
                _tokens(row, "Response tokens"),
                _field(row, "Model"),
            )


def arena(lines: Iterable[str]) -> Iterator[Arrival]:
    """`t_s, tenant, input_tokens, output_tokens`."""
    for row in _rows(lines):
        yield Arrival(
            _number(row, "t_s"),
            _tokens(row, "input_tokens"),
            _tokens(row, "output_tokens"),
            _field(row, "tenant"),
        )


def mooncake(
    lines: Iterable[str], block_tokens: int, tenant: str = "mooncake"
) -> Iterator[Arrival]:
    """JSON lines with `timestamp` (ms) and `hash_ids`, one for 512 tokens and all before them."""
    for number, line in enumerate(lines, 1):
        try:
            row = json.loads(line)
            prompt = int(row["input_length"])
            yield Arrival(
                row["timestamp"] / 1000,
                max(1, prompt),
                max(1, int(row["output_length"])),
                tenant,
                hashes=spread(row["hash_ids"], MOONCAKE_BLOCK, block_tokens, prompt),
            )
        except (ValueError, KeyError, TypeError) as error:
            raise TraceError(f"line {number} is no Mooncake row: {error}") from error


def shapes(rows: Iterable[ShapeRow], block_tokens: int) -> Iterator[Arrival]:
    """Our own ledger's shapes; refused calls too: under another policy they may be served.

    A refused call has no counts of what it would have made: it is given its bound.
    """
    start_ms: int | None = None
    for row in rows:
        start_ms = row.arrived_at_ms if start_ms is None else start_ms
        prompt = max(1, row.input_tokens)
        yield Arrival(
            (row.arrived_at_ms - start_ms) / 1000,
            prompt,
            row.output_tokens or row.max_tokens or 1,
            row.tenant_id,
            WorkClass(row.work_class),
            row.max_tokens or 0,
            spread(row.prefix_hashes, SHAPE_BLOCK, block_tokens, prompt),
        )


def servegen(
    rates: Iterable[str], lengths: Iterable[str], seed: int, until_s: float
) -> Iterator[Arrival]:
    """Clients with a rate and a Gamma or Weibull gap in each 10 minutes, lengths by 6 hours.

    Lengths are lognormal with the published mean and median; a client without lengths is left out,
    as the trace's notes say. A client is a tenant.
    """
    sizes: dict[tuple[str, int], tuple[_Size, _Size]] = {}
    for row in _rows(lengths):
        key = (_field(row, "client"), int(_number(row, "window_s") // WINDOW_S))
        sizes[key] = (_Size(row, "input_tokens"), _Size(row, "output_tokens"))
    bins: dict[str, list[tuple[float, dict[str, str]]]] = {}
    for row in _rows(rates):
        at_s = _number(row, "t_s")
        if at_s < until_s:
            bins.setdefault(_field(row, "client"), []).append((at_s, row))
    root = Chance(seed)
    return merged(
        *(_client(name, rows, sizes, root.fork(name)) for name, rows in sorted(bins.items()))
    )


class _Size:
    """A lognormal of a mean and a median."""

    def __init__(self, row: dict[str, str], name: str) -> None:
        self._median = max(1.0, _number(row, f"{name}_p50"))
        mean = max(self._median, _number(row, f"{name}_mean"))
        self._sigma = sqrt(2 * log(mean / self._median))
        self._most = max(1.0, _number(row, f"{name}_max"))

    def draw(self, chance: Chance) -> int:
        factor = exp(self._sigma * chance.normal())
        return max(1, round(min(self._most, self._median * factor)))


def _client(
    name: str,
    rows: list[tuple[float, dict[str, str]]],
    sizes: dict[tuple[str, int], tuple[_Size, _Size]],
    chance: Chance,
) -> Iterator[Arrival]:
    for from_s, row in rows:
        size = sizes.get((name, int(from_s // WINDOW_S)))
        if size is None:
            continue
        shape, rate = _number(row, "p1"), _number(row, "rate_rps")
        is_weibull = _field(row, "pattern") == "Weibull"
        at_s = from_s
        while True:
            # Scaled to the bin's rate: the published scale is of the whole client's gaps.
            gap = chance.weibull(shape, 1.0) if is_weibull else chance.gamma(shape)
            at_s += gap / (_weibull_mean(shape) if is_weibull else shape) / rate
            if at_s >= from_s + BIN_S:
                break
            yield Arrival(at_s, size[0].draw(chance), size[1].draw(chance), name)


def _weibull_mean(shape: float) -> float:

    return gamma(1 + 1 / shape)


def spread(ids: Iterable[int], from_tokens: int, to_tokens: int, prompt: int) -> tuple[int, ...]:
    """Hashes of coarse blocks as hashes of the engine's smaller ones, whole blocks only.

    Each coarse block names itself and all before it, so its parts do.
    """
    parts = from_tokens // to_tokens
    found = [(value << _PARTS_BITS) + part for value in ids for part in range(parts)]
    return tuple(found[: prompt // to_tokens])


def _rows(lines: Iterable[str]) -> Iterator[dict[str, str]]:
    return csv.DictReader(lines)


def _field(row: dict[str, str], name: str) -> str:
    value = row.get(name)
    if value is None:
        raise TraceError(f"a row has no {name}: it has {', '.join(map(str, row))}")
    return value


def _number(row: dict[str, str], name: str) -> float:
    value = _field(row, name)
    try:
        return float(value)
    except ValueError as error:
        raise TraceError(f"{name} is no number: {value!r}") from error


def _tokens(row: dict[str, str], name: str) -> int:
    return max(1, int(_number(row, name)))
