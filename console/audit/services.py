"""Write the audit trail, in the transaction of the act itself."""

from django.db import connection, transaction
from django.utils import timezone

from console.audit.rules import GENESIS, Actor, Event, chain_hash, clean_text, plain
from console.models import AuditEvent
from console.web.csp import request_id as current_request_id

# Serialises writers of the chain until their commit. Taken before any job row is locked: services
# record first and enqueue afterwards, so the two locks are always asked for in this order.
_CHAIN_LOCK = 0x4852_4155  # "HRAU"


def record(  # noqa: PLR0913 - the columns of an event, all by name
    *,
    actor: Actor,
    act: str,
    object_type: str,
    object_id: str,
    tenant_id: int | None = None,
    reason: str = "",
    before: object = None,
    after: object = None,
    request_id: str = "",
) -> None:
    """Append one event to the chain.

    Must run inside the caller's transaction (raises `TransactionManagementError` otherwise): the
    act and its trace are committed together or not at all. Call it before `enqueue`. Inside a web
    request its id is taken unless one is given.
    """
    if not connection.in_atomic_block:
        raise transaction.TransactionManagementError("record() needs the caller's transaction")
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock(%s)", [_CHAIN_LOCK])
    last = AuditEvent.objects.order_by("-id").values_list("hash", flat=True).first()
    event = Event(
        at=timezone.now(),
        actor_id=actor.user_id,
        actor_label=clean_text(actor.label),
        act=act,
        object_type=object_type,
        object_id=clean_text(object_id),
        tenant_id=tenant_id,
        reason=clean_text(reason),
        before=plain(before),
        after=plain(after),
        request_id=clean_text(request_id or current_request_id()),
    )
    prev_hash = last or GENESIS
    AuditEvent.objects.create(
        at=event.at,
        actor_id=event.actor_id,
        actor_label=event.actor_label,
        act=event.act,
        object_type=event.object_type,
        object_id=event.object_id,
        tenant_id=event.tenant_id,
        reason=event.reason,
        before=event.before,
        after=event.after,
        request_id=event.request_id,
        prev_hash=prev_hash,
        hash=chain_hash(prev_hash, event),
    )
