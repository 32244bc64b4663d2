"""What needs a person now, worst first, each with its bound and a next step."""

from collections.abc import Iterable
from dataclasses import dataclass

from django.urls import reverse

from capacity.fleet.grid import kv_tone
from console.web import units
from console.web.live_state import Seen, SeenPool
from console.web.tables import Strip
from routing.contracts.enums import ReplicaHealth, StoreMode
from routing.contracts.process import GatewayStatus, ProcessStatus

EXPECTED = ("console", "worker", "beat", "collector", "ledger")
LEDGER_LAG_WARN_S = 10.0
ACK_BEHIND = 1  # a snapshot that is one behind is being swapped right now
MAX_SHOWN = 50
_ORDER = {"bad": 0, "warn": 1, "stale": 2}

_LOSS = {
    "console": "pages and REST are served by this process alone.",
    "worker": "jobs wait: replicas are not reconciled, changes do not reach the gateways.",
    "beat": "scheduled jobs do not start.",
    "collector": "figures of replicas and slices stand still; gateways route on their own counts.",
    "ledger": "usage waits in the store and in the gateways' journals; nothing is lost.",
}


@dataclass(frozen=True, slots=True)
class Parts:
    """What was read. None: the store did not answer."""

    gateways: list[Seen[GatewayStatus]] | None
    processes: list[Seen[ProcessStatus]] | None
    newest_snapshot: int | None


def of_parts(parts: Parts) -> list[Strip]:
    """Strips about processes and gateways; about the store alone while it is away."""
    if parts.gateways is None or parts.processes is None:
        return [
            _strip(
                "bad",
                "store away",
                "Gateways admit from local shares, by default at most 5 min; live figures and "
                "process ages are unknown.",
            )
        ]
    found = [*_missing(parts.processes), *_of_gateways(parts.gateways, parts.newest_snapshot)]
    return sorted(found, key=lambda strip: _ORDER.get(strip.tone, 9))[:MAX_SHOWN]


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


def _missing(processes: list[Seen[ProcessStatus]]) -> list[Strip]:
    alive = {seen.status.name for seen in processes if not seen.is_gone}
    strips = [
        _strip("bad", f"{name} gone", f"No sign of life: {_LOSS[name]}")
        for name in EXPECTED
        if name not in alive and name != "console"
    ]
    for seen in processes:
        lag_s = seen.status.lag_s
        if not seen.is_gone and lag_s is not None and lag_s > LEDGER_LAG_WARN_S:
            text = f"{seen.status.name} is {units.seconds(lag_s)} behind."
            strips.append(_strip("warn", "behind", text))
    return strips


def _of_gateways(gateways: list[Seen[GatewayStatus]], newest: int | None) -> list[Strip]:
    alive = [seen.status for seen in gateways if not seen.is_gone]
    strips = []
    if not alive:
        strips.append(_strip("bad", "no gateway", "No gateway reports: nothing is served."))
    for seen in gateways:
        status = seen.status
        if seen.is_gone:
            text = f"Gateway {status.gateway_id} last reported {units.age(seen.age_s)} ago."
            strips.append(_strip("bad", "gone", text))
        elif status.store_mode is not StoreMode.SHARED:
            is_open = status.store_mode is StoreMode.DEGRADED
            how = "it admits from local shares" if is_open else "it refuses"
            text = f"Gateway {status.gateway_id} runs without the store: {how}."
            strips.append(_strip("warn", status.store_mode.value, text))
        elif status.is_journal_behind:
            text = f"Gateway {status.gateway_id}: {status.journal_pending} journal entries wait."
            strips.append(_strip("warn", "behind", text))
        elif newest is not None and status.snapshot_number < newest - ACK_BEHIND:
            text = (
                f"Gateway {status.gateway_id} runs snapshot {status.snapshot_number}, "
                f"newest is {newest}."
            )
            strips.append(_strip("warn", "behind", text))
    return strips


def _strip(tone: str, word: str, text: str) -> Strip:
    return Strip(tone, word, text, reverse("system"), "Open system →")


def _pool(name: str, tone: str, text: str, url: str) -> Strip:
    word = {"bad": "page", "warn": "warn", "stale": "stale"}[tone]
    return Strip(tone, word, f"Pool {name}: {text.strip()}", url, "Open pool →")
