"""Counters, gauges and histograms in Prometheus' text format.

Written out by hand because one observation a token is the engine's main cost: a bisection here is a
fifth of the client library's locked walk over its buckets.
"""

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence


def label_text(labels: Mapping[str, str]) -> str:
    """Labels as between braces, sorted by name, values escaped."""
    return ",".join(
        f'{name}="{value}"'
        for name, value in sorted((name, _escape(value)) for name, value in labels.items())
    )


def _escape(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


class Number:
    """A counter or gauge with one set of labels."""

    __slots__ = ("value",)

    def __init__(self, value: float = 0.0) -> None:
        self.value = value

    def add(self, amount: float = 1.0) -> None:
        """Count `amount` more."""
        self.value += amount


class Histogram:
    """Counts below each edge, and the sum; an observation equal to an edge is below it."""

    __slots__ = ("counts", "edges", "total")

    def __init__(self, edges: Sequence[float]) -> None:
        self.edges = tuple(edges)
        self.counts = [0] * (len(self.edges) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        """Count one value."""
        self.counts[bisect_left(self.edges, value)] += 1
        self.total += value


Series = Number | Histogram


class Family:
    """One metric name: its help, type and series by label text.

    Names of counters are given without `_total`; `created` adds the `_created` gauge that the
    Python client writes beside counters and histograms.
    """

    __slots__ = ("created", "help", "kind", "name", "series")

    def __init__(self, name: str, kind: str, text: str, *, created: float | None = None) -> None:
        self.name = name
        self.kind = kind
        self.help = text
        self.created = created
        self.series: dict[str, Series] = {}

    def write(self, lines: list[str]) -> None:
        """Append the family's lines."""
        name = f"{self.name}_total" if self.kind == "counter" else self.name
        lines.append(f"# HELP {name} {self.help}")
        lines.append(f"# TYPE {name} {self.kind}")
        for labels, series in self.series.items():
            if isinstance(series, Histogram):
                _write_histogram(lines, name, labels, series)
            else:
                lines.append(
                    f"{name}{{{labels}}} {series.value}" if labels else f"{name} {series.value}"
                )
        if self.created is not None:
            lines.append(f"# HELP {self.name}_created {self.help}")
            lines.append(f"# TYPE {self.name}_created gauge")
            lines += [f"{self.name}_created{{{labels}}} {self.created}" for labels in self.series]


def _write_histogram(lines: list[str], name: str, labels: str, series: Histogram) -> None:
    lead = f"{labels}," if labels else ""
    running = 0
    for edge, count in zip(series.edges, series.counts, strict=False):
        running += count
        lines.append(f'{name}_bucket{{{lead}le="{edge}"}} {float(running)}')
    running += series.counts[-1]
    lines.append(f'{name}_bucket{{{lead}le="+Inf"}} {float(running)}')
    lines.append(f"{name}_count{{{labels}}} {float(running)}")
    lines.append(f"{name}_sum{{{labels}}} {series.total}")


class Registry:
    """Families in order, and what to refresh before they are read."""

    def __init__(self) -> None:
        self.families: list[Family] = []
        self.refresh: list[Callable[[], None]] = []

    def text(self) -> bytes:
        """The whole exposition."""
        for refresh in self.refresh:
            refresh()
        lines: list[str] = []
        for family in self.families:
            family.write(lines)
        lines.append("")
        return "\n".join(lines).encode()
