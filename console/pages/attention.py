"""Replicas that need a person now, and the order of everything that does: worst first."""

from collections.abc import Iterable

from django.urls import reverse

from capacity.fleet.grid import kv_tone
from console.web import units
from console.web.live_state import SeenPool
from console.web.tables import Strip
from routing.contracts.enums import ReplicaHealth

MAX_SHOWN = 50
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
            text = f"{state.replica_id} is {state.health.value}. {state.reason}"
            strips.append(_pool(name, "bad", text, url))
        elif tone := kv_tone(state.kv_usage_ratio):
            text = f"{state.replica_id} KV {units.percent(state.kv_usage_ratio)}."
            strips.append(_pool(name, tone, text, url))
    return strips


def worst_first(strips: Iterable[Strip]) -> list[Strip]:
    """At most `MAX_SHOWN`, pages before warnings before stale parts."""
    return sorted(strips, key=lambda strip: _ORDER.get(strip.tone, 9))[:MAX_SHOWN]


def _pool(name: str, tone: str, text: str, url: str) -> Strip:
    word = {"bad": "page", "warn": "warn", "stale": "stale"}[tone]
    return Strip(tone, word, f"Pool {name}: {text.strip()}", url, "Open pool →")
