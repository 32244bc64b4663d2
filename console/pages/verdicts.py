"""What a comparison of two windows says, in sentences, and what to do: the largest cause first."""

from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta

from django.urls import reverse

from console.web import units
from console.web.answers import Answer, NextStep
from tenants.ledger.slow import (
    MIN_SAMPLES,
    Phases,
    SlowReport,
    Suspect,
    have_samples,
    slow_report,
)

RISE = 1.2  # a p99 that rose by less than this is not up: sketches and samples differ as much
HIT_DROP = 0.1  # of the prefix hit ratio
SIZE_RISE = 1.3  # of the mean prompt or answer
OWN_SHARE = 0.5  # of the tail's excess: then one subject explains it
HOUR = timedelta(hours=1)  # the same time of day and load shape, before it went wrong
SHORT = timedelta(minutes=5)
HOUR_BEFORE = "an hour before"

Names = Mapping[tuple[str, str], str]


def compared(*, until: datetime, length: timedelta, words: str) -> tuple[SlowReport, str]:
    """The window against the same an hour before, and what it is compared with, in words.

    Where too little ran then (a new installation, a new night), against the window right before,
    else the last five minutes against the five before: two queries.
    """
    hour, before, now_short, before_short = have_samples(
        (
            (until - HOUR - length, until - HOUR),
            (until - 2 * length, until - length),
            (until - SHORT, until),
            (until - 2 * SHORT, until - SHORT),
        )
    )
    apart, against = HOUR, HOUR_BEFORE
    if not hour and before:
        apart, against = length, f"in the {words} before"
    elif not hour and now_short and before_short:
        length = apart = SHORT
        against = "in the 5 min before the last 5"
    return slow_report(until=until, length=length, apart=apart), against


def verdict(report: SlowReport, names: Names, against: str = HOUR_BEFORE) -> Answer:
    """The answer to "why is P99 up". `names` words a subject by (dimension, subject)."""
    now, before = report.now.ttft_p99_ms, report.before.ttft_p99_ms
    if now is None or before is None:
        few = "this window" if now is None else f"the window {against}"
        headline = f"Unknown: {few} has fewer than {MIN_SAMPLES} requests."
        live = NextStep("Watch what runs now", reverse("live"))
        wait = ("Wait for traffic, or look at a longer window.",)
        return Answer(headline, wait, (live,), "unknown", "unknown")
    change = f"TTFT p99 {now:,.0f} ms against {before:,.0f} ms {against}"
    if now < before * RISE:
        kept = NextStep("See whether objectives are kept", reverse("slo"))
        headline = f"P99 is not up: {change}."
        return Answer(headline, tuple(_decode(report)), (kept,), "ok", "not up")
    reasons = [
        *_owner(report, names),
        *_work(report.now, report.before),
        *_waiting(report.now, report.before),
        *_decode(report),
    ]
    steps = tuple(_steps(report, names))
    return Answer(f"P99 is up: {change}.", tuple(reasons), steps, "warn", "up")


def _steps(report: SlowReport, names: Names) -> Iterator[NextStep]:
    """What to open, by what was found; the widest remedy last."""
    owners = {one.dimension: one for one in _owners(report)}
    if "pool" in owners:
        pool = owners["pool"].subject
        yield NextStep(f"Open pool {pool}", reverse("pool", kwargs={"name": pool}))
    elif "replica" in owners:
        yield NextStep(f"Find replica {owners['replica'].subject}", reverse("fleet"))
    if (tenant := owners.get("tenant")) is not None:
        slug = names.get(("tenant", tenant.subject), "")
        if slug:
            url = reverse("tenant", kwargs={"slug": slug})
            yield NextStep(f"Check what stops {slug}", url)
            yield NextStep("Arm the playbook for noisy tenants", reverse("playbooks"))
    if _rose(report.now.input_mean_tokens, report.before.input_mean_tokens, SIZE_RISE):
        yield NextStep("Try longer prompts in the lab", reverse("lab"))
    if _rose(report.now.ttft_p50_ms, report.before.ttft_p50_ms, RISE):
        yield NextStep("See how many replicas are needed", reverse("forecasts"))
    yield NextStep("What changed meanwhile", reverse("audit"))


def _owners(report: SlowReport) -> list[Suspect]:
    """Of each dimension with a choice, the subject that has most of the slow requests."""
    excess = report.tail - report.now.count / 100
    if excess <= 0:
        return []
    found = []
    for dimension in ("replica", "pool", "tenant", "model", "class"):
        suspects = report.suspects[dimension]
        if len(suspects) >= 2 and suspects[0].excess >= OWN_SHARE * excess:
            found.append(suspects[0])
    return found


def _owner(report: SlowReport, names: Names) -> list[str]:
    excess = report.tail - report.now.count / 100
    return [_own(one, names, one.excess / excess) for one in _owners(report)]


def _own(one: Suspect, names: Names, share: float) -> str:
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
