"""What is asked for: alias to model, permission, work class, deadlines."""

from collections.abc import Callable
from typing import NamedTuple

import msgspec

from routing.contracts.enums import LimitScope, WorkClass
from routing.contracts.snapshot import (
    ALL_MODELS,
    ClassPolicy,
    KeyEntry,
    ModelEntry,
    Snapshot,
    TenantEntry,
)
from routing.decision.types import Reason, Refusal
from routing.gateway.refusal import bad_header

_RANK = {work_class: rank for rank, work_class in enumerate(WorkClass)}
_BY_TIER = {
    "priority": WorkClass.INTERACTIVE,
    "fast": WorkClass.INTERACTIVE,
    "flex": WorkClass.BATCH,
}
_FALLBACK = ClassPolicy(20.0, 5.0, 600.0)  # a class that the policy does not name


class Resolved(NamedTuple):
    """The model that answers, the class it is served in, and that class's deadlines."""

    model: ModelEntry
    work_class: WorkClass
    deadlines: ClassPolicy


def allows(patterns: tuple[str, ...], model: str) -> bool:
    """Whether a list of names permits a model: exact, `prefix/*`, or `*`; empty means none."""
    for pattern in patterns:
        if pattern in (ALL_MODELS, model):
            return True
        if pattern.endswith("/*") and model.startswith(pattern[:-1]):
            return True
    return False


def may_use(tenant: TenantEntry, key: KeyEntry, model: str) -> bool:
    """Whether both tenant and key permit the model that would answer."""
    return allows(tenant.models, model) and allows(key.models, model)


def has_own_limits(tenant: TenantEntry, model: str) -> bool:
    """Whether the tenant has limits for this model alone."""
    return any(
        limit.scope is LimitScope.TENANT_MODEL and limit.subject == model for limit in tenant.limits
    )


def accepted_names(
    snapshot: Snapshot,
    tenant: TenantEntry,
    key: KeyEntry,
    is_loaded: Callable[[str], bool] = lambda _: True,
) -> list[str]:
    """Every model name that a request of this key would be accepted for, aliases included.

    `is_loaded` says of a model whether any replica could serve it: adapters come and go.
    """
    served = {name for name in snapshot.models if may_use(tenant, key, name) and is_loaded(name)}
    names = [alias for alias, name in snapshot.aliases.items() if name in served]
    return sorted([*served, *names])


def find_model(
    snapshot: Snapshot, tenant: TenantEntry, key: KeyEntry, asked: str
) -> ModelEntry | Refusal:
    """The model behind a name; permission is checked on the model that answers, not on the name."""
    model = snapshot.models.get(snapshot.aliases.get(asked, asked))
    if model is None:
        return Refusal(
            Reason.NOT_FOUND,
            f"The model {asked!r} does not exist or you do not have access to it.",
            param="model",
        )
    if not may_use(tenant, key, model.name):
        text = f"This key may not use the model {asked!r}."
        return Refusal(Reason.MODEL_NOT_ALLOWED, text, param="model")
    if not model.prices:
        text = f"The model {asked!r} has no price yet."
        return Refusal(Reason.MODEL_UNAVAILABLE, text, param="model")
    return model


def resolve(
    snapshot: Snapshot,
    caller: tuple[TenantEntry, KeyEntry],
    asked: str,
    service_tier: str,
    headers: dict[bytes, bytes],
) -> Resolved | Refusal:
    """Model, class and deadlines of a request; a caller may narrow its class, never widen it."""
    tenant, key = caller
    model = find_model(snapshot, tenant, key, asked)
    if isinstance(model, Refusal):
        return model
    granted = key.work_class or tenant.default_class
    work_class = _class_of(granted, service_tier, headers.get(b"x-headrace-class"))
    if isinstance(work_class, Refusal):
        return work_class
    deadlines = snapshot.policy.classes.get(work_class, _FALLBACK)
    stated = headers.get(b"x-headrace-deadline-ms")
    if stated is not None:
        if not stated.isdigit() or len(stated) > 9 or int(stated) < 1:
            return bad_header("x-headrace-deadline-ms", "a positive number of milliseconds")
        total_s = min(deadlines.total_s, int(stated) / 1000)
        deadlines = msgspec.structs.replace(deadlines, total_s=total_s)
    return Resolved(model, work_class, deadlines)


def _class_of(granted: WorkClass, tier: str, stated: bytes | None) -> WorkClass | Refusal:
    if stated is not None:
        try:
            asked = WorkClass(stated.decode("latin-1"))
        except ValueError:
            return bad_header("x-headrace-class", "interactive, standard or batch")
        if _RANK[asked] < _RANK[granted]:
            text = f"This key is granted the class {granted.value}, not {asked.value}."
            return Refusal(Reason.CLASS_NOT_ALLOWED, text, param="x-headrace-class")
        return asked
    by_tier = _BY_TIER.get(tier, granted)
    return by_tier if _RANK[by_tier] > _RANK[granted] else granted
