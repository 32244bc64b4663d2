"""Set and remove limits. What was used is counted in the store and stays when a limit changes."""

from dataclasses import dataclass
from typing import Any, TypeVar

from django.db import transaction

from console.audit.rules import Actor
from console.audit.services import record
from console.errors import InvalidInput, NoSuchTenant
from console.validation import save_valid
from routing.contracts.enums import Dimension, LimitScope, WindowKind, WorkClass
from routing.contracts.resources import RESOURCE_NAME_HINT, is_resource_name
from tenants.directory.selectors import model_id_of
from tenants.directory.services import push
from tenants.models import ApiKey, Limit, Tenant
from tenants.quotas.rules import (
    ANCHOR_DAYS,
    MAX_AMOUNT,
    MIDNIGHT,
    RESOURCE_DIMENSIONS,
    SCOPE_SUBJECT,
    Anchor,
    anchor_of,
    window_fits,
)

MAX_LIMITS = 2000  # of one tenant: its gateways hold them all, and a request reads its own few

_Choice = TypeVar("_Choice", LimitScope, Dimension, WindowKind, WorkClass)


@dataclass(frozen=True, slots=True)
class _Bound:
    scope: LimitScope
    dimension: Dimension
    window: WindowKind
    key_id: int | None
    model_id: int | None
    work_class: str
    resource: str

    def columns(self) -> dict[str, Any]:
        return {
            "scope": self.scope.value,
            "dimension": self.dimension.value,
            "window": self.window.value,
            "key_id": self.key_id,
            "model_id": self.model_id,
            "work_class": self.work_class,
            "resource": self.resource,
        }


@transaction.atomic
def set_limit(  # noqa: PLR0913 - the columns of a limit, all by name
    *,
    tenant_id: int,
    scope: str,
    dimension: str,
    window: str,
    amount: int | None,
    key_id: int | None = None,
    model: str | None = None,
    work_class: str = "",
    resource: str = "",
    anchor_day: int | None = None,
    anchor_time: str | None = None,
    actor: Actor,
) -> None:
    """Set a bound to `amount` (0 allows nothing), or remove it with `None`.

    With `anchor_day` (of the month, or 1 Monday to 7 Sunday) or `anchor_time` (`HH:MM`) its window
    begins there in the tenant's zone (a shorter month on its last day), else as the calendar does.
    Raises `NotFound` (tenant), or `InvalidInput` with the field: unknown scope, dimension or
    window, a subject that the scope does not name, a key of another tenant, an anchor that the
    window does not take, or an amount outside 0 to `MAX_AMOUNT`.
    """
    if not Tenant.objects.select_for_update().filter(pk=tenant_id).exists():
        raise NoSuchTenant()
    bound = _bound(tenant_id, scope, dimension, window, (key_id, model, work_class, resource))
    anchor_min = _anchor_min(bound.window, anchor_day, anchor_time)
    row = Limit.objects.filter(tenant_id=tenant_id, **bound.columns()).first()
    before = row.amount if row else None
    anchor_before = row.anchor_min if row else 0
    if amount == before and (amount is None or anchor_min == anchor_before):
        return
    if amount is None:
        if row is not None:
            row.delete()
    else:
        _write(row, tenant_id, bound, amount, anchor_min)
    record(
        actor=actor,
        act="limit.remove" if amount is None else "limit.set",
        object_type="limit",
        object_id=f"{scope}:{key_id or model or work_class or resource}:{dimension}:{window}"[:64],
        tenant_id=tenant_id,
        before={"amount": before, "anchor": _shown(anchor_before)},
        after={
            "amount": amount,
            "scope": scope,
            "dimension": dimension,
            "window": window,
            "key_id": key_id,
            "model": model,
            "work_class": work_class,
            "resource": resource,
            "anchor": _shown(anchor_min),
        },
    )
    push()


def _write(row: Limit | None, tenant_id: int, bound: _Bound, amount: int, anchor_min: int) -> None:
    if isinstance(amount, bool) or not 0 <= amount <= MAX_AMOUNT:
        raise InvalidInput(f"An amount lies between 0 and {MAX_AMOUNT}.", field="amount")
    if row is None:
        if Limit.objects.filter(tenant_id=tenant_id).count() >= MAX_LIMITS:
            raise InvalidInput(f"A tenant has at most {MAX_LIMITS} limits.", field="amount")
        row = Limit(tenant_id=tenant_id, **bound.columns())
    row.amount, row.anchor_min = amount, anchor_min
    save_valid(row, taken="This limit exists.", field="dimension")


def _bound(
    tenant_id: int,
    scope: str,
    dimension: str,
    window: str,
    subject: tuple[int | None, str | None, str, str],
) -> _Bound:
    known_scope = _choice(LimitScope, scope, "scope")
    known_dimension = _choice(Dimension, dimension, "dimension")
    known_window = _choice(WindowKind, window, "window")
    if not window_fits(known_dimension, known_window):
        raise InvalidInput(
            f"{dimension} is not counted over the window {window!r}.",
            field="window",
            hint="Concurrency and KV take 'g' (now); the others m, d, w or mo.",
        )
    key_id, model, work_class, resource = subject
    _check_subject(
        known_scope,
        {"key_id": key_id, "model": model, "work_class": work_class, "resource": resource},
    )
    if resource:
        _check_resource(resource, known_dimension)
    if key_id is not None and not ApiKey.objects.filter(tenant_id=tenant_id, pk=key_id).exists():
        raise InvalidInput("The tenant has no such key.", field="key_id")
    if work_class:
        _choice(WorkClass, work_class, "work_class")
    return _Bound(
        scope=known_scope,
        dimension=known_dimension,
        window=known_window,
        key_id=key_id,
        model_id=None if model is None else model_id_of(model),
        work_class=work_class,
        resource=resource,
    )


def _check_resource(resource: str, dimension: Dimension) -> None:
    if not is_resource_name(resource):
        raise InvalidInput(
            f"{resource!r} is no resource name.", field="resource", hint=RESOURCE_NAME_HINT
        )
    if dimension not in RESOURCE_DIMENSIONS:
        raise InvalidInput(
            f"Uses of a resource have no {dimension.value!r}.",
            field="dimension",
            hint="req, conc and usd can be limited.",
        )


def _shown(anchor_min: int) -> dict[str, object] | None:
    anchor = anchor_of(anchor_min)
    return None if anchor is None else anchor._asdict()


def _anchor_min(window: WindowKind, day: int | None, time: str | None) -> int:
    if day is None and not time:
        return 0
    days = ANCHOR_DAYS.get(window, 0)
    if day is not None and (days < 2 or isinstance(day, bool) or not 1 <= day <= days):
        raise InvalidInput(
            f"A window {window.value!r} does not begin on day {day}.",
            field="anchor_day",
            hint="1 (Monday) to 7 for w, 1 to 31 for mo; no other window takes a day.",
        )
    if not days:
        raise InvalidInput(
            f"A window {window.value!r} has no time to begin at.",
            field="anchor_time",
            hint="Only d, w and mo can begin later than the calendar's.",
        )
    try:
        return Anchor(1 if day is None else day, time or MIDNIGHT).minutes
    except ValueError as error:
        raise InvalidInput(
            f"No time of day: {time!r}.", field="anchor_time", hint="Write it as 10:00."
        ) from error


def _choice(kind: type[_Choice], value: str, field: str) -> _Choice:
    try:
        return kind(value)
    except ValueError as error:
        offered = ", ".join(item.value for item in kind)
        raise InvalidInput(
            f"Unknown {field}: {value!r}.", field=field, hint=f"One of {offered}."
        ) from error


def _check_subject(scope: LimitScope, subject: dict[str, object]) -> None:
    wanted = SCOPE_SUBJECT[scope]
    for name, value in subject.items():
        if (name == wanted) != bool(value):
            problem = "needs" if name == wanted else "takes no"
            raise InvalidInput(f"A limit of scope {scope.value} {problem} {name}.", field=name)
