"""Add a price row. A row is never edited: a mistake is corrected by the next one."""

from datetime import datetime, timedelta

from django.db import transaction
from django.utils import timezone

from console.audit.rules import Actor
from console.audit.services import record
from console.errors import InvalidInput
from console.validation import save_valid
from console.web import units
from routing.contracts.resources import RESOURCE_NAME_HINT, is_resource_name
from tenants.directory.selectors import model_id_of
from tenants.directory.services import push
from tenants.models import PoolPrice, PriceRow, ResourcePrice
from tenants.prices.rules import (
    DOUBTFUL_FACTOR,
    MAX_NANOUSD,
    OF_GPU,
    OF_UNIT,
    Bounds,
    Rates,
    doubtful_field,
    impossible_field,
    is_doubtful,
)
from tenants.prices.selectors import pool_id_of

LATEST_START = timedelta(days=366)
MAX_RESOURCES = 1_000  # gateways hold them all
BACKDATE_S = 60  # clocks differ; further back, requests were priced already


@transaction.atomic
def add_price(  # noqa: PLR0913 - the columns of a price, all by name
    *,
    model: str,
    input_nanousd: int,
    cached_nanousd: int,
    output_nanousd: int,
    cache_write_nanousd: int | None = None,
    reasoning_nanousd: int | None = None,
    image_nanousd: int = 0,
    valid_from: datetime | None = None,
    note: str = "",
    confirm: bool = False,
    actor: Actor,
) -> int:
    """Add a model's next price, from `valid_from` (now unless said) on; returns its version.

    Requests keep the price in force when they started. Raises `InvalidInput`: no such model, a rate
    out of bounds, a start in the past, or `price_needs_confirmation` for a doubtful rate without
    `confirm`; `Conflict` when a price starts at that moment already or another call was faster.
    """
    start = _start(valid_from)
    model_id = model_id_of(model)
    rates = Rates(
        input_nanousd,
        cached_nanousd,
        output_nanousd,
        cache_write_nanousd,
        reasoning_nanousd,
        image_nanousd,
    )
    last = PriceRow.objects.filter(model_id=model_id).order_by("-version").first()
    _check(rates, last, confirm=confirm)
    row = PriceRow(
        model_id=model_id,
        version=last.version + 1 if last else 1,
        valid_from=start,
        note=note,
        **rates.by_name(),
    )
    save_valid(row, taken="Another price of this model was added just now.", field="valid_from")
    record(
        actor=actor,
        act="price.add",
        object_type="price",
        object_id=str(row.pk),
        before=_rates(last).by_name() if last else None,
        after={
            "model": model,
            "version": row.version,
            "valid_from": start,
            "confirmed": confirm,
            **rates.by_name(),
        },
        reason=note,
    )
    push()
    return row.version


@transaction.atomic
def add_resource_price(
    *,
    resource: str,
    unit_nanousd: int,
    valid_from: datetime | None = None,
    note: str = "",
    confirm: bool = False,
    actor: Actor,
) -> int:
    """Add the next price of one use of a resource; its first makes the resource known.

    Returns its version. Raises `InvalidInput`: no resource name, a price out of bounds, one that
    looks like a slip without `confirm`, a start in the past, too many resources; `Conflict` as
    `add_price`.
    """
    if not is_resource_name(resource):
        raise InvalidInput(
            f"{resource!r} is no resource name.", field="resource", hint=RESOURCE_NAME_HINT
        )
    last = ResourcePrice.objects.filter(resource=resource).order_by("-version").first()
    known = ResourcePrice.objects.values("resource").distinct().count()
    if last is None and known >= MAX_RESOURCES:
        raise InvalidInput(f"At most {MAX_RESOURCES} resources.", field="resource")
    before = last.unit_nanousd if last else None
    _check_single("unit_nanousd", "a use", unit_nanousd, before, OF_UNIT, confirm=confirm)
    row = ResourcePrice(
        resource=resource,
        version=last.version + 1 if last else 1,
        valid_from=_start(valid_from),
        unit_nanousd=unit_nanousd,
        note=note,
    )
    said = {"resource": resource, "confirmed": confirm}
    return _added(row, "resource_price", "unit_nanousd", before, said, actor)


@transaction.atomic
def add_pool_price(
    *,
    pool: str,
    gpu_second_nanousd: int,
    valid_from: datetime | None = None,
    note: str = "",
    confirm: bool = False,
    actor: Actor,
) -> int:
    """Add what one second of one GPU of a pool of ours costs from now on; returns its version.

    It charges nobody: callers pay their model's price. Raises `InvalidInput`: no such pool, a
    price out of bounds, one that looks like a slip (per hour?) without `confirm`, a start in the
    past; `Conflict` as `add_price`.
    """
    pool_id = pool_id_of(pool)
    last = PoolPrice.objects.filter(pool_id=pool_id).order_by("-version").first()
    before = last.gpu_second_nanousd if last else None
    _check_single(
        "gpu_second_nanousd", "a GPU-second", gpu_second_nanousd, before, OF_GPU, confirm=confirm
    )
    row = PoolPrice(
        pool_id=pool_id,
        version=last.version + 1 if last else 1,
        valid_from=_start(valid_from),
        gpu_second_nanousd=gpu_second_nanousd,
        note=note,
    )
    said = {"pool": pool, "confirmed": confirm}
    return _added(row, "pool_price", "gpu_second_nanousd", before, said, actor, reaches=False)


def _added(
    row: ResourcePrice | PoolPrice,
    object_type: str,
    field: str,
    before: int | None,
    said: dict[str, object],
    actor: Actor,
    *,
    reaches: bool = True,
) -> int:
    """Save and audit a price of one rate; `reaches`: gateways charge with it."""
    save_valid(row, taken="Another price of it was added just now.", field="valid_from")
    record(
        actor=actor,
        act="price.add",
        object_type=object_type,
        object_id=str(row.pk),
        before=None if before is None else {field: before},
        after=said
        | {
            "version": row.version,
            "valid_from": row.valid_from,
            field: getattr(row, field),
        },
        reason=row.note,
    )
    if reaches:
        push()
    return row.version


def _check_single(
    field: str, what: str, value: int, before: int | None, bounds: Bounds, *, confirm: bool
) -> None:
    if isinstance(value, bool) or not 0 <= value <= bounds.most:
        raise InvalidInput(
            f"{what[0].upper()}{what[1:]} costs between 0 and {units.usd(bounds.most)} USD.",
            field=field,
        )
    if is_doubtful(value, before, bounds.doubtful) and not confirm:
        raise InvalidInput(
            "This price looks like a slip: very high, or more than"
            f" {DOUBTFUL_FACTOR} times the one before.",
            field=field,
            code="price_needs_confirmation",
            hint=f"Check the unit (USD for {what}); repeat with confirm if meant.",
        )


def _start(valid_from: datetime | None) -> datetime:
    now = timezone.now()
    start = valid_from or now
    if start < now - timedelta(seconds=BACKDATE_S) or start > now + LATEST_START:
        raise InvalidInput(
            "A price starts now or within a year: the past is priced already.", field="valid_from"
        )
    return start


def _check(rates: Rates, last: PriceRow | None, *, confirm: bool) -> None:
    if name := impossible_field(rates):
        raise InvalidInput(
            f"A rate lies between 0 and {units.usd(MAX_NANOUSD)} USD per million tokens.",
            field=name,
        )
    name = doubtful_field(rates, _rates(last) if last else None)
    if name and not confirm:
        raise InvalidInput(
            "This rate looks like a slip: very high, or more than"
            f" {DOUBTFUL_FACTOR} times the one before.",
            field=name,
            code="price_needs_confirmation",
            hint="Check the unit (USD per million tokens); repeat with confirm if meant.",
        )


def _rates(row: PriceRow) -> Rates:
    return Rates(
        row.input_nanousd,
        row.cached_nanousd,
        row.output_nanousd,
        row.cache_write_nanousd,
        row.reasoning_nanousd,
        row.image_nanousd,
    )
