"""What needs a person now, or is being done to traffic, and the order of it: worst first."""

from collections.abc import Iterable, Mapping

from django.urls import reverse

from capacity.fleet.grid import kv_tone
from capacity.playbooks.selectors import RunView
from capacity.rollouts.selectors import OffCourse
from console.pages.figures import ClassRow
from console.web import units
from console.web.live_state import SeenPool, age_of_ms
from console.web.tables import Strip
from routing.contracts.enums import ReplicaHealth
from routing.overrides.selectors import OverrideView
from telemetry.slos.selectors import ObjectiveState

MAX_SHOWN = 50
MIN_BAD_NOW = 10  # fewer slow requests in 15 minutes are no reason to look up
_ORDER = {"bad": 0, "warn": 1, "stale": 2}


def of_pool(name: str, seen: SeenPool | None, desired: int) -> list[Strip]:
    """Strips about one pool's replicas; `desired` 0 means that none are wanted."""
    url = reverse("pool", kwargs={"name": name})
    if seen is None:
        return [_pool(name, "stale", "no report yet.", url)] if desired else []
    if seen.is_stale:
        text = f"last report {units.age(seen.age_s)} ago: figures below are old."
        return [_pool(name, "stale", text, url)]
    strips = []
    for state in seen.state.endpoints:
        if state.health is ReplicaHealth.STALE:
            strips.append(_pool(name, "stale", f"{state.replica_id} is stale. {state.reason}", url))
        elif state.health is not ReplicaHealth.OK:
            is_lost = state.health is ReplicaHealth.LOST and state.at_ms
            since = f" Last good report {_age(state.at_ms)}." if is_lost else ""
            text = f"{state.replica_id} is {state.health.value}. {state.reason}{since}"
            strips.append(_pool(name, "bad", text, url))
        elif tone := kv_tone(state.kv_usage_ratio):
            text = f"{state.replica_id} KV {units.percent(state.kv_usage_ratio)}."
            strips.append(_pool(name, tone, text, url))
    return strips


def of_objectives(states: Iterable[ObjectiveState]) -> list[Strip]:
    """Strips of objectives whose budget burns too fast: what, how fast, over which windows."""
    strips = []
    for one in states:
        if one.alarm is None:
            continue
        rule = one.alarm.rule
        tone = "bad" if rule.severity == "page" else "warn"
        text = (
            f"Objective {one.objective.label}: burn {one.alarm.long_burn:.1f}x over"
            f" {_minutes(rule.long_min)}, {one.alarm.short_burn:.1f}x over"
            f" {_minutes(rule.short_min)} ({one.objective.promise})."
        )
        strips.append(Strip(tone, rule.severity, text, reverse("why_p99"), "Why? →"))
    return strips


def of_classes(rows: Iterable[ClassRow]) -> list[Strip]:
    """Strips of classes that keep less than promised now, before their budget's alarm rings."""
    return [
        Strip(
            "warn",
            "below",
            f"{row.label} keeps {units.percent(row.judged.good_ratio, 1)} over the last 15 min;"
            f" promised: {row.objective.promise}.",
            reverse("why_p99"),
            "Why? →",
        )
        for row in rows
        if row.is_over and row.judged and row.objective and row.judged.bad >= MIN_BAD_NOW
    ]


def of_runs(runs: Iterable[RunView]) -> list[Strip]:
    """Strips of playbooks at work: what each acts on, or would in a dry run."""
    strips = []
    for one in runs:
        is_acting = one.state == "acting"
        is_asking = one.state == "asking"
        does = "acts on" if is_acting else "asks to act on" if is_asking else "would act on"
        url = reverse("playbook_run", kwargs={"name": one.playbook, "run_id": one.id})
        since = f"{one.started_at:%H:%M} UTC"
        text = f"Playbook {one.playbook} {does} {one.label} since {since}: step {one.depth}."
        word = "dry run" if one.state == "watching" else one.state
        strips.append(Strip("warn", word, text, url, "Decide →" if is_asking else "Open run →"))
    return strips


def of_overrides(rows: Iterable[OverrideView], runs: Iterable[RunView]) -> list[Strip]:
    """Strips of overrides in force, less those of the runs, which have strips of their own."""
    named = {one.id for one in runs}
    return [
        Strip(
            "warn",
            "override",
            f"Override until {one.ends_at:%H:%M} UTC: {one.words}."
            + (f" By {one.author}." if one.author else ""),
            reverse("overrides"),
            "Open overrides →",
        )
        for one in rows
        if one.run_id not in named
    ]


def of_rollouts(rows: Iterable[OffCourse]) -> list[Strip]:
    """Strips of rollouts that stand still, go back or have stopped, with the cause."""
    return [
        Strip(
            "bad" if one.state == "failed" else "warn",
            "rollout",
            f"Rollout {one.id} of pool {one.pool}: {one.state_label.lower()}."
            + (f" {one.cause}" if one.cause else ""),
            reverse("rollout", kwargs={"rollout_id": one.id}),
            "Open rollout →",
        )
        for one in rows
    ]


def queue_ages(seen: Mapping[str, SeenPool]) -> list[float | None]:
    """How long the oldest waiting request of each replica that reports has waited at least (s)."""
    return [
        state.queue_age_s
        for pool in seen.values()
        if not pool.is_stale
        for state in pool.state.endpoints
        if state.health in (ReplicaHealth.OK, ReplicaHealth.HUNG)
    ]


def worst_first(strips: Iterable[Strip]) -> list[Strip]:
    """At most `MAX_SHOWN`, pages before warnings before stale parts."""
    return sorted(strips, key=lambda strip: _ORDER.get(strip.tone, 9))[:MAX_SHOWN]


def _age(at_ms: int) -> str:
    return f"{units.age(age_of_ms(at_ms))} ago"


def _minutes(count: int) -> str:
    return units.seconds(count * 60)


def _pool(name: str, tone: str, text: str, url: str) -> Strip:
    word = {"bad": "page", "warn": "warn", "stale": "stale"}[tone]
    return Strip(tone, word, f"Pool {name}: {text.strip()}", url, "Open pool →")
