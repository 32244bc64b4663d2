"""Document, catalogue, tenants, keys and prices -> the snapshot that gateways run.

Aliases become names, bounds of several sources their tightest; nothing is looked up later.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import TypeVar

from routing.contracts.capacity import CapacityLimit
from routing.contracts.hooks import HookEntry, HookPoint, HookUse
from routing.contracts.snapshot import (
    DEFAULT_KIND,
    MAX_TASK_S,
    SCHEMA_VERSION,
    ClassPolicy,
    FailurePolicy,
    Fallback,
    KeyEntry,
    ModelEntry,
    OutagePolicy,
    PolicyEntry,
    PoolEntry,
    Price,
    Snapshot,
    Target,
    TaskCaps,
    TenantEntry,
    encode_snapshot,
)
from routing.policies.rules.document import ClassRule, Document, HookRule, ModelRule, WorkflowRule
from routing.policies.rules.fallbacks import Evaluated

_Cap = TypeVar("_Cap", int, str)


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What the catalogue knows of a model."""

    context_tokens: int
    output_cap_tokens: int
    bytes_per_token: float


@dataclass(frozen=True, slots=True)
class Sources:
    """Everything beside the document that a snapshot holds."""

    tenants: Sequence[TenantEntry]
    keys: Mapping[str, KeyEntry]
    models: Mapping[str, ModelFacts]
    pools: Mapping[str, PoolEntry]
    prices: Mapping[str, tuple[Price, ...]]
    fleet_limits: tuple[CapacityLimit, ...] = ()
    resources: Mapping[str, tuple[Price, ...]] = field(default_factory=dict)
    hooks: Mapping[str, HookEntry] = field(default_factory=dict)
    evaluations: frozenset[Evaluated] = frozenset()


def compile_snapshot(
    document: Document, *, version: int, digest: str, sources: Sources
) -> Snapshot:
    """The snapshot without number and time (both 0): equal sources give equal bytes.

    A model that has lost its catalogue row or was never priced is left out, so that it is refused
    rather than served for nothing; pools that are gone are left out of its targets, and fallbacks
    whose evaluation was withdrawn out of its fallbacks.
    """
    models = {
        name: _model(name, rule, document, sources)
        for name, rule in sorted(document.models.items())
        if name in sources.models and sources.prices.get(name)
    }
    return Snapshot(
        schema_version=SCHEMA_VERSION,
        number=0,
        created_at_ms=0,
        policy=_policy(document, version, digest),
        tenants={tenant.id: tenant for tenant in sources.tenants},
        keys=dict(sources.keys),
        models=models,
        aliases={
            alias: name
            for name, rule in sorted(document.models.items())
            if name in models
            for alias in rule.aliases
        },
        pools=dict(sources.pools),
        fleet_limits=sources.fleet_limits,
        resources=dict(sorted(sources.resources.items())),
        hooks={
            name: sources.hooks[name]
            for name in sorted({rule.hook for rule in document.hooks} & sources.hooks.keys())
        },
    )


def content_digest(snapshot: Snapshot) -> str:
    """Hex SHA-256 of an unnumbered snapshot's bytes: what tells news from repetition."""
    return hashlib.sha256(encode_snapshot(snapshot)).hexdigest()


def _model(name: str, rule: ModelRule, document: Document, sources: Sources) -> ModelEntry:
    facts = sources.models[name]
    asked = document.admission.estimate.bytes_per_token
    return ModelEntry(
        name=name,
        context_tokens=min(facts.context_tokens, rule.context_tokens or facts.context_tokens),
        output_cap_tokens=min(facts.output_cap_tokens, document.admission.caps.output_tokens),
        bytes_per_token=facts.bytes_per_token if asked is None else asked,
        targets=tuple(
            Target(target.pool, target.order, float(target.weight), target.adapter)
            for target in rule.targets
            if target.pool in sources.pools
        ),
        prices=sources.prices[name],
        fallbacks=tuple(
            Fallback(one.model, tuple(one.when), float(one.headroom_ratio))
            for one in rule.fallbacks
            if (one.evaluation, name, one.model) in sources.evaluations
        ),
    )


def _policy(document: Document, version: int, digest: str) -> PolicyEntry:
    failures = document.failures
    return PolicyEntry(
        name=document.name,
        version=version,
        digest=digest,
        default_class=document.admission.default_class,
        output_cap_tokens=document.admission.caps.output_tokens,
        max_choices=document.admission.caps.choices,
        classes={name.value: _class(rule) for name, rule in document.classes.by_name().items()},
        failures=FailurePolicy(
            attempts=failures.attempts,
            retry_per_success=float(failures.retry_budget.per_success),
            retry_burst=float(failures.retry_budget.burst),
            resend_before_output=failures.resend_before_output,
            continue_lost=failures.on_stream_loss == "continue",
            backoff_base_s=float(failures.backoff.base_s),
            backoff_max_s=float(failures.backoff.max_s),
        ),
        outage=OutagePolicy(
            store_away=document.outage.store_away,
            share_ratio=float(document.outage.share_ratio),
            max_s=float(document.outage.max_s),
        ),
        stale_after_s=float(document.routing.stale_after_s),
        slow_start_s=float(document.routing.slow_start_s),
        hooks=tuple(_hook(rule) for rule in document.hooks),
        workflows=_workflows(document),
    )


def _hook(rule: HookRule) -> HookUse:
    """A hook whose row is gone stays in the list: gateways do what its failure asks for."""
    return HookUse(
        hook=rule.hook,
        at=HookPoint(rule.at),
        deadline_s=rule.deadline_ms / 1000,
        fails_open=rule.on_failure == "pass",
        classes=None if rule.classes is None else tuple(rule.classes),
    )


def _workflows(document: Document) -> dict[str, TaskCaps]:
    default = document.workflows.get(DEFAULT_KIND, WorkflowRule())
    return {
        kind: TaskCaps(
            max_steps=_said(rule.max_steps, default.max_steps),
            max_spend_nanousd=_nanousd(_said(rule.max_spend_usd, default.max_spend_usd)),
            max_wall_s=_said(rule.max_wall_s, default.max_wall_s) or MAX_TASK_S,
            max_repeats=_said(rule.max_repeats, default.max_repeats),
        )
        for kind, rule in sorted(document.workflows.items())
    }


def _said(own: _Cap | None, default: _Cap | None) -> _Cap | None:
    return default if own is None else own


def _nanousd(usd: str | None) -> int | None:
    return None if usd is None else int(Decimal(usd).scaleb(9))


def _class(rule: ClassRule) -> ClassPolicy:
    return ClassPolicy(
        first_token_s=float(rule.deadlines.first_token_s),
        between_tokens_s=float(rule.deadlines.between_tokens_s),
        total_s=float(rule.deadlines.total_s),
        output_cap_tokens=rule.caps.output_tokens,
        reserve_ratio=float(rule.reserve_ratio),
        floor_ratio=float(rule.floor_ratio),
    )
