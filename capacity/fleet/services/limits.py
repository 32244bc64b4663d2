"""Limits of pools and of the fleet, over all tenants."""

from django.db import transaction

from capacity.fleet.services.inventory import PUSH_SNAPSHOT
from capacity.models import CapacityLimit, Pool
from capacity.models.limits import MAX_AMOUNT
from console.audit.rules import Actor
from console.audit.services import record
from console.errors import InvalidInput, NotFound
from console.jobs.services import enqueue
from console.validation import save_valid
from routing.contracts.capacity import LIMITED

FLEET = "fleet"


@transaction.atomic
def set_capacity_limit(
    *, pool: str | None, dimension: str, amount: int | None, actor: Actor, confirm: bool = False
) -> None:
    """Bound what a pool takes, or the whole fleet (`pool` None); `amount` None removes the bound.

    Rates count per minute, concurrency and KV tokens at once. Raises `NotFound` (pool), or
    `InvalidInput` for a dimension that has no such limit, an amount outside 0 to `MAX_AMOUNT`, or
    `limit_needs_confirmation` for 0, which stops every tenant there, without `confirm`.
    """
    row_of_pool = None
    if pool is not None:
        row_of_pool = Pool.objects.select_for_update().filter(name=pool).first()
        if row_of_pool is None:
            raise NotFound("No such pool.")
    if dimension not in LIMITED:
        offered = ", ".join(LIMITED)
        raise InvalidInput(
            f"No such dimension: {dimension!r}.", field="dimension", hint=f"One of {offered}."
        )
    if amount is not None and (isinstance(amount, bool) or not 0 <= amount <= MAX_AMOUNT):
        raise InvalidInput(f"An amount lies between 0 and {MAX_AMOUNT}.", field="amount")
    row = CapacityLimit.objects.filter(pool=row_of_pool, dimension=dimension).first()
    before = row.amount if row else None
    if amount == before:
        return
    if amount == 0 and not confirm:
        raise InvalidInput(
            "A fleet limit of 0 refuses every request of every tenant."
            if pool is None
            else f"A limit of 0 lets pool {pool} take no request of any tenant.",
            field="amount",
            code="limit_needs_confirmation",
            hint="Repeat with confirm if that is meant.",
        )
    if amount is not None:
        row = row or CapacityLimit(pool=row_of_pool, dimension=dimension)
        row.amount = amount
        save_valid(row, taken="This limit exists.", field="dimension")
    elif row is not None:
        row.delete()
    record(
        actor=actor,
        act="capacity_limit.remove" if amount is None else "capacity_limit.set",
        object_type="capacity_limit",
        object_id=f"{pool or FLEET}:{dimension}",
        before={"amount": before},
        after={"amount": amount, "pool": pool, "dimension": dimension},
    )
    enqueue(PUSH_SNAPSHOT, dedupe_key=PUSH_SNAPSHOT)
