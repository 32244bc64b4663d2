"""Gather what playbooks watch, and the figures that say what an act did."""

from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from datetime import datetime

from django.db.models import Max, Q

from capacity.fleet.rules import ranked
from capacity.models import Pool, Replica, ReplicaChange
from capacity.playbooks.rules import Document, burn_now, kv_ratio, lost_ratio, queue_s
from console.web.live_state import pool_states
from routing.contracts.enums import ReplicaHealth, ReplicaLifecycle
from routing.decision.playbook import Signal
from telemetry.slices.signals import Spans, figures, offered_by_tenant, usual_offers
from telemetry.slos.selectors import objectives, states
from telemetry.stats.burn import burn
from tenants.directory.selectors import slugs_of

MAX_SUBJECTS = 50  # of one playbook at a time: the largest offers, or any pools
MAX_POOLS = 2000
SHORT_MIN = 5  # the short window of the hour's alarm


@dataclass(frozen=True, slots=True)
class Reading:
    """The signal of one subject now. `value` None: not known.

    `target` is what measures are about: a tenant's slug, a pool's model. `baseline` is what the
    value is a multiple of.
    """

    subject: str
    label: str
    target: str
    value: float | None
    baseline: float | None = None


@dataclass(frozen=True, slots=True)
class Watched:
    """Subjects that a playbook looks after: labels, and baselines of running ones (frozen)."""

    labels: Mapping[str, str]
    baselines: Mapping[str, float]
    past_runs: Mapping[int, Spans]


def readings(document: Document, watched: Watched, now: datetime) -> dict[str, Reading]:
    """By subject: everything watched, and what might begin now."""
    if document.is_about_tenants:
        return _tenants(document, watched, now)
    if document.signal is Signal.OBJECTIVE_BURN:
        return _objectives(watched.labels, now)
    if document.signal is Signal.POOL_LOST_RATIO:
        return _lost_pools(watched.labels.keys())
    return _loaded_pools(document.signal, watched.labels.keys())


def _tenants(document: Document, watched: Watched, now: datetime) -> dict[str, Reading]:
    offers = offered_by_tenant()
    if offers is None:
        return {
            subject: Reading(subject, label, label, None, watched.baselines.get(subject))
            for subject, label in watched.labels.items()
        }
    large = [one for one in offers if one.tokens_per_min >= document.least_tokens_per_min]
    by_id = {str(one.tenant_id): one for one in offers}
    slugs = slugs_of([one.tenant_id for one in large[:MAX_SUBJECTS]])
    labels = {str(tenant_id): slug for tenant_id, slug in slugs.items()}
    labels.update(watched.labels)
    asked = [int(subject) for subject in labels if subject not in watched.baselines]
    usual = usual_offers(
        asked,
        now=now,
        minutes=document.baseline_min,
        least_minutes=document.baseline_least_min,
        skipping=watched.past_runs,
    )
    found = {}
    for subject, label in labels.items():
        offer = by_id.get(subject)
        rate = offer.tokens_per_min if offer else 0.0
        is_running = subject in watched.baselines
        baseline = watched.baselines[subject] if is_running else usual.get(int(subject))
        found[subject] = Reading(
            subject,
            label,
            label,
            _multiple(rate, baseline, 0.0 if is_running else document.least_tokens_per_min),
            baseline,
        )
    return found


def _multiple(rate: float, baseline: float | None, least: float) -> float | None:
    if rate < least:
        return 0.0  # too little to be anybody's trouble, whatever it usually is
    return rate / baseline if baseline else None


def _objectives(watched: Mapping[str, str], now: datetime) -> dict[str, Reading]:
    """An objective that is gone burns nothing any more."""
    found = {subject: Reading(subject, label, "", 0.0) for subject, label in watched.items()}
    for state in states(objectives(), now=now):
        one = state.objective
        subject = str(one.id)
        five_min = burn(state.windows[SHORT_MIN], one.target_ratio)
        value = burn_now(state.burn_1h, five_min, state.windows[60].bad)
        found[subject] = Reading(subject, one.label, one.model, value)
    return found


def _wanted_pools() -> list[Pool]:
    rows = Pool.objects.filter(desired_replicas__gt=0).select_related("model")
    return list(rows.order_by("name")[:MAX_POOLS])


def _loaded_pools(signal: Signal, watched: Collection[str]) -> dict[str, Reading]:
    """Load of every pool, over its engines with a fresh report; unknown without any."""
    pools = _wanted_pools()
    seen = pool_states([pool.name for pool in pools]) or {}
    found = {name: Reading(name, name, "", 0.0) for name in watched}  # gone: nothing waits there
    for pool in pools:
        live = seen.get(pool.name)
        fresh = [
            state
            for state in (live.state.endpoints if live is not None and not live.is_stale else ())
            if state.health is ReplicaHealth.OK
        ]
        if signal is Signal.POOL_QUEUE_S:
            value = queue_s((state.waiting, state.queue_mean_s) for state in fresh)
        else:
            value = kv_ratio(state.kv_usage_ratio for state in fresh)
        found[pool.name] = Reading(pool.name, pool.name, pool.model.name, value)
    return found


def _lost_pools(watched: Collection[str]) -> dict[str, Reading]:
    pools = _wanted_pools()
    replicas = _counted_on(pools)
    seen = pool_states([pool.name for pool in pools]) or {}
    found = {
        name: Reading(name, name, "", 0.0) for name in watched
    }  # a pool that wants nothing any more has lost nothing
    for pool in pools:
        live = seen.get(pool.name)
        healths: dict[str, ReplicaHealth] = {}
        if live is not None and not live.is_stale:
            healths = {state.replica_id: state.health for state in live.state.endpoints}
        value = lost_ratio(
            (
                (row.lifecycle, int(row.handle.get("failures", 0)), healths.get(row.name))
                for row in replicas.get(pool.pk, ())
            ),
            pool.desired_replicas,
        )
        found[pool.name] = Reading(pool.name, pool.name, pool.model.name, value)
    return found


def _counted_on(pools: Collection[Pool]) -> dict[int, list[Replica]]:
    """By pool, the replicas whose loss is a loss: wanted ones that do work, or have done.

    Left out: what a rollout holds back or has given up, what is beyond the wanted number, and what
    breaks before it was ever ready.
    """
    rows = list(Replica.objects.filter(removed_at=None, is_retired=False, pool__in=pools))
    broken = [row.pk for row in rows if row.lifecycle != ReplicaLifecycle.READY.value]
    began = (
        ReplicaChange.objects.filter(replica__in=broken)
        .values("replica")
        .annotate(
            added=Max("id", filter=Q(before="")),
            ready=Max("id", filter=Q(after=ReplicaLifecycle.READY.value)),
        )
        .values_list("replica", "added", "ready")
    )
    # Without a record of how it began, it counts.
    never_ready = {pk for pk, added, ready in began if added is not None and added > (ready or 0)}
    by_pool: dict[int, list[Replica]] = {}
    for row in rows:
        by_pool.setdefault(row.pool_id, []).append(row)
    found: dict[int, list[Replica]] = {}
    for pool in pools:
        mine = by_pool.get(pool.pk, [])
        wanted = ranked([row.ordinal for row in mine], pool.desired_replicas + pool.surge_replicas)
        found[pool.pk] = [
            row
            for row in mine
            if row.ordinal in wanted and not row.is_held and row.pk not in never_ready
        ]
    return found


def effect_now() -> dict[str, float | int | None]:
    """Figures over all traffic, for the record of an act; empty while nobody reports them."""
    found = figures()
    return asdict(found) if found is not None else {}
