"""Set overrides, hold them longer, lift them, and bring the present set to the gateways.

Each act is a row with its audit event and a queued push; the push is also tried at once after the
commit, so that a busy worker costs no time. What neither brings, the schedule does.
"""

import logging
from collections.abc import Sequence
from datetime import timedelta

from django.db import connection, transaction
from django.utils import timezone
from redis.exceptions import RedisError

from console.audit.rules import Actor
from console.audit.services import record
from console.errors import Conflict, InvalidInput, NoSuchTenant, NotFound
from console.jobs.services import enqueue
from console.validation import save_valid
from console.web.store import store
from routing.contracts.override import MAX_IN_FORCE, encode_overrides
from routing.models import Override
from routing.overrides.rules import Fault, Wanted, fault_of, hold_fault, words_of
from routing.overrides.selectors import (
    OverrideView,
    for_gateways,
    in_force,
    same_in_force,
    view_of,
)
from routing.store.state import read_overrides_version, write_overrides
from tenants.directory.selectors import model_id_of, tenant_by_slug

logger = logging.getLogger(__name__)

PUSH_OVERRIDES = "push_overrides"
PERSON = "person"
_LOCK = 0x4852_4F56  # "HROV": of two pushers the later one reads later


@transaction.atomic
def apply_override(
    *,
    wanted: Wanted,
    hold_s: float,
    reason: str,
    actor: Actor,
    source: str = PERSON,
    run_id: int | None = None,
) -> OverrideView:
    """Set one for `hold_s` seconds; `reason` is told to the callers that it touches.

    The same one of the same source again, while it is in force, is answered as it stands: sent
    twice, set once. Raises `InvalidInput` (also for a model that the catalogue does not have),
    `NotFound` (tenant), or `Conflict` when `MAX_IN_FORCE` are in force.
    """
    _refuse(fault_of(wanted) or hold_fault(hold_s))
    if not reason.strip():
        raise InvalidInput("Say why: callers read it.", field="reason")
    if wanted.model:
        model_id_of(wanted.model)  # one that gateways cannot meet would be obeyed by nobody
    tenant_id = None
    if wanted.tenant:
        try:
            tenant_id = tenant_by_slug(wanted.tenant).id
        except NotFound as error:
            raise NoSuchTenant(field="tenant") from error
    now = timezone.now()
    present = same_in_force(source=source, tenant_id=tenant_id, wanted=wanted)
    if present is not None and present.run_id == run_id:
        return view_of(present, now)
    if in_force(now).count() >= MAX_IN_FORCE:
        raise Conflict(
            f"{MAX_IN_FORCE} overrides are in force already.",
            code="too_many_overrides",
            hint="Lift some, or publish a policy instead.",
        )
    row = Override(
        kind=wanted.kind.value,
        tenant_id=tenant_id,
        tenant_slug=wanted.tenant,
        work_class=wanted.work_class.value if wanted.work_class else "",
        model=wanted.model,
        amount=wanted.amount,
        admitted_ratio=wanted.admitted_ratio or 0.0,
        reason=reason.strip(),
        source=source,
        run_id=run_id,
        author_id=actor.user_id,
        created_at=now,
        ends_at=now + timedelta(seconds=hold_s),
    )
    save_valid(row, taken="This override exists.")
    record(
        actor=actor,
        act="override.set",
        object_type="override",
        object_id=str(row.pk),
        reason=reason,
        after={
            "words": words_of(wanted),
            "ends_at": row.ends_at.isoformat(),
            "source": source,
            "run": run_id,
        },
    )
    _push_soon()
    return view_of(row, now)


@transaction.atomic
def hold_longer(*, override_ids: Sequence[int], hold_s: float) -> int:
    """Move the end of those still in force to `hold_s` from now; how many.

    Not audited one by one: the run that set them says how long it may hold them. One that has been
    lifted or has ended stays so.
    """
    _refuse(hold_fault(hold_s))
    now = timezone.now()
    rows = in_force(now).filter(pk__in=list(override_ids))
    count = rows.update(ends_at=now + timedelta(seconds=hold_s))
    if count:
        _push_soon()
    return count


@transaction.atomic
def lift_override(*, override_id: int, actor: Actor, reason: str = "") -> tuple[OverrideView, bool]:
    """End one now; it, and whether this act ended it. What has ended stays as it is.

    Raises `NotFound`.
    """
    row = Override.objects.select_for_update().filter(pk=override_id).first()
    if row is None:
        raise NotFound("No such override.")
    now = timezone.now()
    if row.lifted_at is not None or row.ends_at <= now:
        return view_of(row, now), False
    row.lifted_at, row.lifted_by = now, actor.label
    row.save(update_fields=["lifted_at", "lifted_by"])
    view = view_of(row, now)
    record(
        actor=actor,
        act="override.lift",
        object_type="override",
        object_id=str(row.pk),
        reason=reason,
        before={"words": view.words, "ends_at": row.ends_at.isoformat()},
        after={"lifted_at": now.isoformat()},
    )
    _push_soon()
    return view, True


def push_overrides() -> str:
    """Offer the present set to the gateways; its version. Raises `redis.RedisError`.

    Pushers run one after the other, and each reads after it has waited: the last write is of the
    newest rows.
    """
    with transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_advisory_xact_lock(%s)", [_LOCK])
        raw, version = encode_overrides(for_gateways(timezone.now()))
        if read_overrides_version(store()) != version:
            write_overrides(store(), raw, version)
    return version


def _push_soon() -> None:
    enqueue(PUSH_OVERRIDES, dedupe_key=PUSH_OVERRIDES)
    transaction.on_commit(_try_push)


def _try_push() -> None:
    try:
        push_overrides()
    except RedisError as error:
        logger.warning("overrides not pushed at once, the queued job will: %s", error)


def _refuse(fault: Fault | None) -> None:
    if fault is not None:
        raise InvalidInput(fault.reason, field=fault.field, hint=fault.fix)
