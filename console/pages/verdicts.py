"""What a comparison of two windows says, in sentences: the largest cause first."""

from dataclasses import dataclass

from console.web import units
from tenants.ledger.slow import Phases, SlowReport, Suspect

RISE = 1.2  # a p99 that rose by less than this is not up: sketches and samples differ as much
HIT_DROP = 0.1  # of the prefix hit ratio
SIZE_RISE = 1.3  # of the mean prompt or answer
OWN_SHARE = 0.5  # of the tail's excess: then one subject explains it


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether TTFT p99 is up and why; `reasons` are sentences, the strongest first."""

    is_up: bool | None
    headline: str
    reasons: tuple[str, ...]


def verdict(report: SlowReport, names: dict[tuple[str, str], str]) -> Verdict:
    """The answer to "why is P99 up". `names` words a subject by (dimension, subject)."""
    now, before = report.now.ttft_p99_ms, report.before.ttft_p99_ms
    if now is None or before is None:
        few = "this window" if now is None else "the window an hour before"
        return Verdict(None, f"Unknown: {few} has fewer than 30 requests.", ())
    change = f"TTFT p99 {now:,.0f} ms against {before:,.0f} ms an hour before"
    if now < before * RISE:
        return Verdict(False, f"P99 is not up: {change}.", tuple(_decode(report)))
    reasons = [
        *_owner(report, names),
        *_work(report.now, report.before),
        *_waiting(report.now, report.before),
        *_decode(report),
    ]
    return Verdict(True, f"P99 is up: {change}.", tuple(reasons))


def _owner(report: SlowReport, names: dict[tuple[str, str], str]) -> list[str]:
    excess = report.tail - report.now.count / 100
    if excess <= 0:
        return []
    found = []
    for dimension in ("replica", "pool", "tenant", "model", "class"):
        suspects = report.suspects[dimension]
        if len(suspects) < 2 or suspects[0].excess < OWN_SHARE * excess:
            continue
        found.append(_own(suspects[0], names, suspects[0].excess / excess))
    return found


def _own(one: Suspect, names: dict[tuple[str, str], str], share: float) -> str:
    label = names.get((one.dimension, one.subject), one.subject)
    return (
        f"{one.dimension.capitalize()} {label} has {units.percent(min(share, 1.0))} of the slow"
        f" requests beyond the usual one in a hundred ({one.tail:,} of its {one.now.count:,})."
    )


def _work(now: Phases, before: Phases) -> list[str]:
    found = []
    if now.hit_ratio is not None and before.hit_ratio is not None:
        drop = before.hit_ratio - now.hit_ratio
        if drop >= HIT_DROP:
            found.append(
                f"Prefill does more: prefix hits fell from {units.percent(before.hit_ratio)} to"
                f" {units.percent(now.hit_ratio)} of input tokens."
            )
    if _rose(now.input_mean_tokens, before.input_mean_tokens, SIZE_RISE):
        found.append(
            f"Prefill does more: the mean prompt grew from {units.count(before.input_mean_tokens)}"
            f" to {units.count(now.input_mean_tokens)} tokens."
        )
    return found


def _waiting(now: Phases, before: Phases) -> list[str]:
    median = _rose(now.ttft_p50_ms, before.ttft_p50_ms, RISE)
    if median:
        return ["The median rose too: waiting grew for everyone, not only in the tail."]
    return ["The median did not rise: a part of the traffic waits, not all of it."]


def _decode(report: SlowReport) -> list[str]:
    if not _rose(report.now.decode_p99_ms, report.before.decode_p99_ms, RISE):
        return []
    longer = _rose(report.now.output_mean_tokens, report.before.output_mean_tokens, SIZE_RISE)
    why = "answers are longer" if longer else "answers are no longer: batches are fuller"
    return [
        f"Decoding is slower too: p99 {units.count(report.now.decode_p99_ms)} ms against"
        f" {units.count(report.before.decode_p99_ms)} ms; {why}."
    ]


def _rose(now: float | None, before: float | None, factor: float) -> bool:
    return now is not None and bool(before) and now >= float(before or 0) * factor
