"""The life of a quota request: ask, withdraw, grant, refuse; and the end of a grant.

Every act locks the tenant first, then the request: of two people who decide at once, one waits and
then learns what the other did.
"""

from datetime import datetime

from django.db import transaction
from django.utils import timezone

from console.audit.rules import SYSTEM, Actor
from console.audit.services import record
from console.errors import Conflict, InvalidInput, NoSuchTenant, NotFound
from console.validation import save_valid
from console.web import units
from routing.contracts.enums import Dimension, LimitScope
from tenants.models import Limit, QuotaRequest, QuotaRequestState, Tenant
from tenants.quotas.rules import MAX_AMOUNT, anchor_of
from tenants.quotas.services import set_limit
from tenants.requests.rules import MAX_OPEN, why_no_end, why_no_grant
from tenants.requests.selectors import request_view
from tenants.requests.words import amount as amount_in
from tenants.requests.words import happened

MAX_ENDED = 200  # grants ended by one run of the job; the next run goes on

_NAMED = ("scope", "model_id", "work_class", "resource", "dimension", "window")


@transaction.atomic
def ask_for_more(
    *,
    tenant_id: int,
    limit_id: int,
    amount: int,
    reason: str,
    until: datetime | None = None,
    actor: Actor,
) -> int:
    """Ask operators to raise a limit to `amount`, for good or `until` a moment; returns the id.

    Raises `NotFound`, `InvalidInput` with the field (not above the present limit, a key's own
    limit, a bad end, too many open), or `Conflict` when one for this limit is open already.
    """
    if not Tenant.objects.select_for_update().filter(pk=tenant_id).exists():
        raise NoSuchTenant()
    limit = Limit.objects.filter(tenant_id=tenant_id, pk=limit_id).first()
    if limit is None:
        raise InvalidInput(
            "The tenant has no such limit.",
            field="limit_id",
            hint="What is not limited needs no request; see the limits page.",
        )
    if limit.scope == LimitScope.KEY.value:
        raise InvalidInput(
            "Limits of keys are set by the tenant's own admins.",
            field="limit_id",
            hint="Set it on the limits page, or through PUT limits/.",
        )
    if amount > MAX_AMOUNT:
        is_money = limit.dimension == Dimension.SPEND_NANOUSD.value
        most = f"{units.usd(MAX_AMOUNT)} USD" if is_money else units.count(MAX_AMOUNT)
        raise InvalidInput(f"A limit is at most {most}.", field="amount", hint="Ask for less.")
    if isinstance(amount, bool) or amount <= limit.amount:
        raise InvalidInput(
            "Ask for more than the present limit.",
            field="amount",
            hint="The limits page says what it is now.",
        )
    if until is not None and (why := why_no_end(until, timezone.now())):
        raise InvalidInput(why, field="until", hint="From a minute to a year ahead, or no end.")
    waiting = QuotaRequest.objects.filter(tenant_id=tenant_id, state=QuotaRequestState.OPEN)
    if waiting.count() >= MAX_OPEN:
        raise InvalidInput(
            f"{MAX_OPEN} requests are open already.",
            field="limit_id",
            hint="Withdraw one, or wait for a decision.",
        )
    row = QuotaRequest(
        tenant_id=tenant_id,
        amount_then=limit.amount,
        amount_asked=amount,
        reason=reason.strip(),
        until=until,
        asked_by_id=actor.user_id,
        **{name: getattr(limit, name) for name in _NAMED},
    )
    save_valid(
        row, taken="A request for this limit is open. Withdraw it to ask anew.", field="limit_id"
    )
    _record(row, actor, "quota.ask", row.reason, None, {"asked": amount, "until": until})
    return row.pk


@transaction.atomic
def withdraw(*, tenant_id: int, request_id: int, actor: Actor) -> None:
    """Take an own open request back. Raises `NotFound`, or `Conflict` when it was decided."""
    row = _open(request_id, tenant_id)
    row.state = QuotaRequestState.WITHDRAWN
    row.decided_by_id, row.decided_at = actor.user_id, timezone.now()
    row.save(update_fields=["state", "decided_by", "decided_at"])
    _record(row, actor, "quota.withdraw", "", {"state": "open"}, {"state": "withdrawn"})


@transaction.atomic
def refuse(*, request_id: int, reason: str, actor: Actor) -> None:
    """Say no, and why. Raises `NotFound`, `InvalidInput` (reason), or `Conflict` when decided."""
    row = _open(request_id)
    if not reason.strip():
        raise InvalidInput("Say why: the tenant reads it.", field="reason")
    row.state = QuotaRequestState.REFUSED
    row.decided_by_id, row.decided_at = actor.user_id, timezone.now()
    row.decision_reason = reason.strip()
    save_valid(row, taken="", field="reason")
    _record(row, actor, "quota.refuse", reason, {"state": "open"}, {"state": "refused"})


@transaction.atomic
def grant(
    *,
    request_id: int,
    amount: int,
    ends_at: datetime | None = None,
    reason: str = "",
    actor: Actor,
) -> None:
    """Raise the limit to `amount`, at most what was asked, for good or until `ends_at`.

    Gateways admit by it within seconds. A grant for the same limit that still runs gives way: the
    new one returns to where that one would have. Raises `NotFound`, `InvalidInput` with the field,
    or `Conflict`: `already_decided`, or `limit_gone` when the limit was removed meanwhile.
    """
    row = _open(request_id)
    now = timezone.now()
    if ends_at is not None and (why := why_no_end(ends_at, now)):
        raise InvalidInput(why, field="ends_at", hint="From a minute to a year ahead, or no end.")
    limit = _limit_of(row)
    if limit is None:
        raise Conflict(
            "The limit was removed meanwhile: nothing bounds the tenant there.",
            code="limit_gone",
            hint="Refuse the request, saying so.",
        )
    if isinstance(amount, bool) or (
        why := why_no_grant(amount=amount, present=limit.amount, asked=row.amount_asked)
    ):
        raise InvalidInput(
            why or "An amount is a whole number.",
            field="amount",
            hint=_between(row, limit.amount),
        )
    running = _running(row)
    row.amount_back = limit.amount
    if running is not None and running.amount_granted == limit.amount:
        row.amount_back = running.amount_back
    if running is not None:
        running.state, running.ended_at = QuotaRequestState.SUPERSEDED, now
        running.end_note = f"Request {row.pk} was granted for the same limit."
        running.save(update_fields=["state", "ended_at", "end_note"])
    row.state = QuotaRequestState.GRANTED
    row.decided_by_id, row.decided_at = actor.user_id, now
    row.decision_reason = reason.strip()
    row.amount_granted, row.ends_at = amount, ends_at
    save_valid(row, taken="", field="amount")
    _record(
        row,
        actor,
        "quota.grant",
        reason,
        {"amount": limit.amount, "state": "open"},
        {"amount": amount, "ends_at": ends_at, "back_to": row.amount_back, "state": "granted"},
    )
    _set(row, limit, amount, actor)


def end_due_grants() -> int:
    """Return every limit whose grant has ended to where it was; returns how many ended.

    A limit that a person set to something else meanwhile stays as it is. Each grant is a
    transaction of its own, so that one that fails holds up no other. Safe to repeat.
    """
    due = QuotaRequest.objects.filter(
        state=QuotaRequestState.GRANTED, ends_at__lte=timezone.now()
    ).order_by("ends_at")
    return sum(_end(request_id) for request_id in due.values_list("pk", flat=True)[:MAX_ENDED])


@transaction.atomic
def _end(request_id: int) -> bool:
    _lock_tenant_of(request_id)
    now = timezone.now()
    row = (
        QuotaRequest.objects.select_for_update(of=("self",))
        .select_related("model")
        .filter(pk=request_id, state=QuotaRequestState.GRANTED, ends_at__lte=now)
        .first()
    )
    if row is None or row.amount_back is None:
        return False
    limit = _limit_of(row)
    is_ours = limit is not None and limit.amount == row.amount_granted
    row.state, row.ended_at = QuotaRequestState.ENDED, now
    row.end_note = "" if is_ours else "The limit was changed meanwhile and stays as it is."
    row.save(update_fields=["state", "ended_at", "end_note"])
    _record(
        row,
        SYSTEM,
        "quota.end",
        row.end_note,
        {"amount": limit.amount if limit else None, "state": "granted"},
        {"amount": row.amount_back if is_ours else "unchanged", "state": "ended"},
    )
    if limit is not None and is_ours:
        _set(row, limit, row.amount_back, SYSTEM)
    return True


def _open(request_id: int, tenant_id: int | None = None) -> QuotaRequest:
    """The locked row, its tenant locked before it: whoever asks anew holds that lock as well.

    Raises `NotFound`, or `Conflict` saying what was decided, by whom and when.
    """
    _lock_tenant_of(request_id)
    rows = QuotaRequest.objects.select_for_update(of=("self",)).select_related(
        "tenant", "model", "asked_by", "decided_by"
    )
    if tenant_id is not None:
        rows = rows.filter(tenant_id=tenant_id)
    row = rows.filter(pk=request_id).first()
    if row is None:
        raise NotFound("No such request.")
    if row.state != QuotaRequestState.OPEN:
        raise Conflict(
            f"This request is decided: {happened(request_view(row))}",
            code="already_decided",
            hint="Nothing was changed. To change a limit again, set it on the tenant's limits.",
        )
    return row


def _lock_tenant_of(request_id: int) -> None:
    asked = QuotaRequest.objects.filter(pk=request_id).values("tenant_id")
    list(Tenant.objects.select_for_update().filter(pk__in=asked).values_list("pk", flat=True))


def _limit_of(row: QuotaRequest) -> Limit | None:
    named = {name: getattr(row, name) for name in _NAMED}
    return Limit.objects.filter(tenant_id=row.tenant_id, key=None, **named).first()


def _running(row: QuotaRequest) -> QuotaRequest | None:
    """The timed grant in force for the same limit, locked."""
    named = {name: getattr(row, name) for name in _NAMED}
    return (
        QuotaRequest.objects.select_for_update()
        .filter(
            tenant_id=row.tenant_id,
            state=QuotaRequestState.GRANTED,
            ends_at__isnull=False,
            **named,
        )
        .first()
    )


def _set(row: QuotaRequest, limit: Limit, amount: int, actor: Actor) -> None:
    anchor = anchor_of(limit.anchor_min)
    is_day = anchor is None or limit.window == "d"
    set_limit(
        tenant_id=row.tenant_id,
        scope=row.scope,
        dimension=row.dimension,
        window=row.window,
        amount=amount,
        model=row.model.name if row.model else None,
        work_class=row.work_class,
        resource=row.resource,
        anchor_day=None if is_day or anchor is None else anchor.day,
        anchor_time=anchor.time if anchor else None,
        actor=actor,
    )


def _between(row: QuotaRequest, present: int) -> str:
    limit = request_view(row).limit
    return f"Above {amount_in(limit, present)}, at most {amount_in(limit, row.amount_asked)}."


def _record(
    row: QuotaRequest,
    actor: Actor,
    act: str,
    reason: str,
    before: dict[str, object] | None,
    after: dict[str, object],
) -> None:
    after = {
        name: value.isoformat() if isinstance(value, datetime) else value
        for name, value in after.items()
    }
    record(
        actor=actor,
        act=act,
        object_type="quota_request",
        object_id=str(row.pk),
        tenant_id=row.tenant_id,
        reason=reason,
        before=before,
        after={"dimension": row.dimension, "window": row.window, "scope": row.scope, **after},
    )
