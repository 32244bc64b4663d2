"""`/metrics` of one gateway process, in the Prometheus text format.

Labels are closed sets (see `routing.gateway.stats`); seconds and bytes are base units.
"""

import resource
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from routing.gateway.fleet import Endpoint
from routing.gateway.hooks.asked import AskedHook
from routing.gateway.stats import BUCKETS_S, Histogram, Stats

CONTENT_TYPE = b"text/plain; version=0.0.4; charset=utf-8"
MAX_REPLICA_LABELS = 500
_PAGE_BYTES = resource.getpagesize()
_NANO = 1e9


@dataclass(frozen=True, slots=True)
class Gauges:
    """What is read off the process at the moment of the scrape."""

    in_flight: int
    connections: int
    snapshot_number: int
    journal_pending: int
    store_mode: str
    is_ready: bool
    buffered_bytes: int


Labels = tuple[tuple[str, str], ...]
Sample = tuple[Labels, float]


def exposition(
    stats: Stats,
    gauges: Gauges,
    endpoints: Mapping[str, Endpoint],
    returns: Mapping[tuple[str, str], int],
    spans: Mapping[str, int],
    hooks: Iterable[tuple[str, AskedHook]] = (),
) -> bytes:
    """The whole page; `returns` counts by limit and outcome, `spans` by outcome (none: off)."""
    lines: list[str] = []
    _counters(lines, stats)
    _family(
        lines, "returns_total", "counter", "Callers back at the time they were told, by limit.",
        (((("limit", limit), ("outcome", o)), n) for (limit, o), n in returns.items()),
    )  # fmt: skip
    if spans:
        _family(
            lines, "spans_total", "counter", "Spans of requests, by what became of them.",
            (((("outcome", outcome),), n) for outcome, n in spans.items()),
        )  # fmt: skip
    _hooks(lines, list(hooks))
    _gauges(lines, gauges)
    _replicas(lines, endpoints)
    _histograms(lines, "time_to_first_token_seconds", "From accept to first token.", stats.ttft)
    _histograms(lines, "request_duration_seconds", "Of requests that ended ok.", stats.duration)
    return ("\n".join(lines) + "\n").encode()


def _counters(lines: list[str], stats: Stats) -> None:
    _family(
        lines, "requests_total", "counter", "Requests by tenant and outcome.",
        (((("tenant", t), ("outcome", o)), n) for (t, o), n in stats.requests.items()),
    )  # fmt: skip
    _family(
        lines, "model_requests_total", "counter", "Requests by model and outcome.",
        (((("model", m), ("outcome", o)), n) for (m, o), n in stats.model_requests.items()),
    )  # fmt: skip
    _family(
        lines, "tokens_total", "counter", "Tokens charged, by tenant and kind.",
        (((("tenant", t), ("kind", k)), n) for (t, k), n in stats.tokens.items()),
    )  # fmt: skip
    _family(
        lines, "spend_usd_total", "counter", "Dollars charged, by tenant.",
        (((("tenant", t),), n / _NANO) for t, n in stats.spend_nanousd.items()),
    )  # fmt: skip
    _family(
        lines, "refusals_total", "counter", "Refusals by code.",
        (((("code", code),), n) for code, n in stats.refusals.items()),
    )  # fmt: skip
    _family(
        lines, "hold_exceeded_total", "counter", "Requests that used more than their hold.",
        (((("model", model),), n) for model, n in stats.hold_exceeded.items()),
    )  # fmt: skip
    _family(lines, "retries_total", "counter", "Requests sent again.", [((), stats.retries)])
    _family(
        lines, "fallbacks_total", "counter",
        "Requests that another model than the one asked for was sent, by outcome.",
        (
            ((("model", asked), ("fallback", served), ("outcome", o)), n)
            for (asked, served, o), n in stats.fallbacks.items()
        ),
    )  # fmt: skip
    _family(
        lines, "retries_refused_total", "counter", "Not sent again: the retry budget was spent.",
        [((), stats.retries_refused)],
    )  # fmt: skip
    _family(
        lines, "replays_total", "counter", "Answers given again for an Idempotency-Key.",
        [((), stats.replays)],
    )  # fmt: skip


def _gauges(lines: list[str], gauges: Gauges) -> None:
    for name, text, value in (
        ("in_flight_requests", "Requests that hold something.", gauges.in_flight),
        ("open_connections", "Callers' connections.", gauges.connections),
        ("snapshot_number", "Number of the snapshot in force.", gauges.snapshot_number),
        ("journal_pending_requests", "Ended, not known in the ledger.", gauges.journal_pending),
        ("buffered_body_bytes", "Unfinished request bodies.", gauges.buffered_bytes),
        ("ready", "1 when ready.", int(gauges.is_ready)),
        ("process_resident_memory_bytes", "Resident memory.", _resident_bytes()),
        ("process_cpu_seconds_total", "CPU time used.", _cpu_s()),
    ):
        _family(lines, name, "counter" if name.endswith("_total") else "gauge", text, [((), value)])
    mode = (("mode", gauges.store_mode),)
    _family(lines, "store_mode", "gauge", "1 for the admission mode in force.", [(mode, 1)])


def _replicas(lines: list[str], endpoints: Mapping[str, Endpoint]) -> None:
    shown = sorted(endpoints.items())[:MAX_REPLICA_LABELS]
    _family(
        lines, "replica_in_flight_requests", "gauge", "Own requests on a replica.",
        (((("replica", name),), endpoint.candidate.in_flight) for name, endpoint in shown),
    )  # fmt: skip
    _family(
        lines, "replica_breaker_open", "gauge", "1 while a replica's breaker is open.",
        (
            ((("replica", name),), 0 if endpoint.candidate.breaker.allows() else 1)
            for name, endpoint in shown
        ),
    )  # fmt: skip


def _hooks(lines: list[str], hooks: list[tuple[str, AskedHook]]) -> None:
    if not hooks:
        return
    _family(
        lines, "hook_calls_total", "counter", "Calls of safety hooks by verdict.",
        (
            ((("hook", name), ("verdict", verdict)), n)
            for name, hook in hooks
            for verdict, n in sorted(hook.verdicts.items())
        ),
    )  # fmt: skip
    _family(
        lines, "hook_breaker_open", "gauge", "1 while a hook is passed over, for it keeps failing.",
        (((("hook", name),), 0 if hook.breaker.allows() else 1) for name, hook in hooks),
    )  # fmt: skip
    by_hook = {name: hook.duration for name, hook in hooks}
    _histograms(lines, "hook_duration_seconds", "Of calls of safety hooks.", by_hook, "hook")


def _histograms(
    lines: list[str], name: str, text: str, found: Mapping[str, Histogram], of: str = "model"
) -> None:
    full = f"headrace_{name}"
    lines += [f"# HELP {full} {text}", f"# TYPE {full} histogram"]
    for whose, histogram in found.items():
        label, total = _escaped(whose), 0
        for bound, count in zip((*BUCKETS_S, "+Inf"), histogram.counts, strict=True):
            total += count
            lines.append(f'{full}_bucket{{{of}="{label}",le="{bound}"}} {total}')
        lines.append(f'{full}_sum{{{of}="{label}"}} {histogram.sum_s:.6f}')
        lines.append(f'{full}_count{{{of}="{label}"}} {total}')


def _family(lines: list[str], name: str, kind: str, text: str, samples: Iterable[Sample]) -> None:
    full = f"headrace_{name}"
    lines += [f"# HELP {full} {text}", f"# TYPE {full} {kind}"]
    for labels, value in samples:
        inner = ",".join(f'{key}="{_escaped(label)}"' for key, label in labels)
        lines.append(f"{full}{{{inner}}} {value}" if inner else f"{full} {value}")


def _escaped(label: str) -> str:
    return label.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _resident_bytes() -> int:
    with open("/proc/self/statm", "rb") as file:
        return int(file.read().split()[1]) * _PAGE_BYTES


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime
