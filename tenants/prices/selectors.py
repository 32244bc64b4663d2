"""The price book, and the price in force at a moment."""

from collections import defaultdict
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db import models
from django.db.models import Max

from console.errors import InvalidInput
from routing.contracts.enums import Dimension, LimitScope, WindowKind
from routing.contracts.snapshot import Price
from routing.decision.limits import limit_name
from tenants.models import Limit, PoolPrice, PriceRow, ResourcePrice

MAX_PAGE = 201  # the largest page, and one more row to know that another follows
# Prices that ended this long ago stay in the snapshot: requests that began under them still run.
KEPT_AFTER_END = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class PriceView:
    """One price row; rates in nano-dollars per million tokens."""

    id: int
    model: str
    version: int
    valid_from: datetime
    input_nanousd: int
    cached_nanousd: int
    output_nanousd: int
    cache_write_nanousd: int | None
    reasoning_nanousd: int | None
    image_nanousd: int
    note: str
    created_at: datetime


def prices(
    *, model: str | None = None, before_id: int | None = None, limit: int = 50
) -> list[PriceView]:
    """Price rows newest first, at most `MAX_PAGE`."""
    rows = PriceRow.objects.select_related("model").order_by("-id")
    if model is not None:
        rows = rows.filter(model__name=model)
    if before_id is not None:
        rows = rows.filter(id__lt=before_id)
    return [_view(row) for row in rows[: min(limit, MAX_PAGE)]]


def price_in_force(model: str, at: datetime) -> PriceView | None:
    """The price of a model at a moment, or `None` when it has none: that is not 0."""
    rows = PriceRow.objects.select_related("model").filter(model__name=model, valid_from__lte=at)
    row = rows.order_by("-valid_from").first()
    return _view(row) if row else None


def prices_for_snapshot(now: datetime) -> dict[str, tuple[Price, ...]]:
    """Model -> its prices from shortly before now on, oldest first.

    Future ones travel too, so a price change needs no new snapshot at its moment.
    """
    horizon = now - KEPT_AFTER_END
    bases = dict(
        PriceRow.objects.filter(valid_from__lte=horizon)
        .order_by()
        .values_list("model_id")
        .annotate(Max("valid_from"))
    )
    rows = PriceRow.objects.filter(
        models.Q(valid_from__gt=horizon)
        | models.Q(valid_from__in=set(bases.values()), model_id__in=bases.keys())
    )
    found: dict[str, list[Price]] = defaultdict(list)
    for row in rows.select_related("model").order_by("model_id", "valid_from"):
        if row.valid_from <= horizon and row.valid_from != bases.get(row.model_id):
            continue
        found[row.model.name].append(
            Price(
                version=row.version,
                input_nanousd=row.input_nanousd,
                cached_nanousd=row.cached_nanousd,
                output_nanousd=row.output_nanousd,
                valid_from_ms=int(row.valid_from.timestamp() * 1000),
                cache_write_nanousd=row.cache_write_nanousd,
                reasoning_nanousd=row.reasoning_nanousd,
                image_nanousd=row.image_nanousd,
            )
        )
    return {model: tuple(listed) for model, listed in found.items()}


@dataclass(frozen=True, slots=True)
class SinglePriceView:
    """A price of one rate: `nanousd` a use of the resource `name`, or a GPU-second of the pool."""

    id: int
    name: str
    version: int
    valid_from: datetime
    nanousd: int
    note: str
    created_at: datetime


def resource_prices(
    *, name: str | None = None, before_id: int | None = None, limit: int = 50
) -> list[SinglePriceView]:
    """Price rows of resources, newest first, at most `MAX_PAGE`."""
    rows = ResourcePrice.objects.order_by("-id")
    if name is not None:
        rows = rows.filter(resource=name)
    if before_id is not None:
        rows = rows.filter(id__lt=before_id)
    return [_single(row, row.resource, row.unit_nanousd) for row in rows[: min(limit, MAX_PAGE)]]


def pool_prices(
    *, name: str | None = None, before_id: int | None = None, limit: int = 50
) -> list[SinglePriceView]:
    """Price rows of GPU-seconds of our own pools, newest first, at most `MAX_PAGE`."""
    rows = PoolPrice.objects.select_related("pool").order_by("-id")
    if name is not None:
        rows = rows.filter(pool__name=name)
    if before_id is not None:
        rows = rows.filter(id__lt=before_id)
    return [
        _single(row, row.pool.name, row.gpu_second_nanousd) for row in rows[: min(limit, MAX_PAGE)]
    ]


def gpu_second_nanousd(pool: str, at: datetime) -> int | None:
    """What a second of one GPU of a pool cost at a moment; None where nobody has said."""
    rows = PoolPrice.objects.filter(pool__name=pool, valid_from__lte=at).order_by("-valid_from")
    return rows.values_list("gpu_second_nanousd", flat=True).first()


def pool_id_of(name: str) -> int:
    """Id of a pool. Raises `InvalidInput`. Asked through our own foreign key, as models are."""
    pools: type[models.Model] = PoolPrice.pool.field.related_model
    found = pools._default_manager.filter(name=name).values_list("pk", flat=True).first()
    if found is None:
        raise InvalidInput(f"No such pool: {name!r}.", field="pool", hint="Add the pool first.")
    return int(found)


def _single(row: ResourcePrice | PoolPrice, name: str, nanousd: int) -> SinglePriceView:
    return SinglePriceView(
        id=row.pk,
        name=name,
        version=row.version,
        valid_from=row.valid_from,
        nanousd=nanousd,
        note=row.note,
        created_at=row.created_at,
    )


@dataclass(frozen=True, slots=True)
class ResourceLimitView:
    """A tenant's limit on a named resource; `name` is the public one, such as `spend_per_day`."""

    id: int
    resource: str
    tenant: str
    name: str
    dimension: Dimension
    amount: int


def resource_limits(*, name: str | None = None, limit: int = 50) -> list[ResourceLimitView]:
    """Limits on resources of all tenants, by resource and tenant, at most `MAX_PAGE`."""
    rows = Limit.objects.select_related("tenant").filter(scope=LimitScope.RESOURCE.value)
    if name is not None:
        rows = rows.filter(resource=name)
    ordered = rows.order_by("resource", "tenant__slug", "dimension", "window", "pk")
    return [
        ResourceLimitView(
            id=row.pk,
            resource=row.resource,
            tenant=row.tenant.slug,
            name=limit_name(Dimension(row.dimension), WindowKind(row.window)),
            dimension=Dimension(row.dimension),
            amount=row.amount,
        )
        for row in ordered[: min(limit, MAX_PAGE)]
    ]


def resource_prices_for_snapshot(now: datetime) -> dict[str, tuple[Price, ...]]:
    """Resource -> its prices from shortly before now on, oldest first, as those of models."""
    horizon = now - KEPT_AFTER_END
    found: dict[str, list[Price]] = defaultdict(list)
    for row in ResourcePrice.objects.order_by("resource", "valid_from"):
        listed = found[row.resource]
        if row.valid_from <= horizon:
            listed.clear()  # it follows one that ended before anything that runs began
        listed.append(
            Price(
                version=row.version,
                input_nanousd=0,
                cached_nanousd=0,
                output_nanousd=0,
                valid_from_ms=int(row.valid_from.timestamp() * 1000),
                unit_nanousd=row.unit_nanousd,
            )
        )
    return {resource: tuple(listed) for resource, listed in found.items()}


def _view(row: PriceRow) -> PriceView:
    return PriceView(
        id=row.pk,
        model=row.model.name,
        version=row.version,
        valid_from=row.valid_from,
        input_nanousd=row.input_nanousd,
        cached_nanousd=row.cached_nanousd,
        output_nanousd=row.output_nanousd,
        cache_write_nanousd=row.cache_write_nanousd,
        reasoning_nanousd=row.reasoning_nanousd,
        image_nanousd=row.image_nanousd,
        note=row.note,
        created_at=row.created_at,
    )
