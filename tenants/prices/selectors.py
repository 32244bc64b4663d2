"""The price book, and the price in force at a moment."""

from collections import defaultdict
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db import models
from django.db.models import Max

from routing.contracts.snapshot import Price
from tenants.models import PriceRow, ResourcePrice

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
class ResourcePriceView:
    """One price row of a resource, in nano-dollars a use."""

    id: int
    resource: str
    version: int
    valid_from: datetime
    unit_nanousd: int
    note: str
    created_at: datetime


def resource_prices(
    *, resource: str | None = None, before_id: int | None = None, limit: int = 50
) -> list[ResourcePriceView]:
    """Price rows of resources, newest first, at most `MAX_PAGE`."""
    rows = ResourcePrice.objects.order_by("-id")
    if resource is not None:
        rows = rows.filter(resource=resource)
    if before_id is not None:
        rows = rows.filter(id__lt=before_id)
    return [
        ResourcePriceView(
            id=row.pk,
            resource=row.resource,
            version=row.version,
            valid_from=row.valid_from,
            unit_nanousd=row.unit_nanousd,
            note=row.note,
            created_at=row.created_at,
        )
        for row in rows[: min(limit, MAX_PAGE)]
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
