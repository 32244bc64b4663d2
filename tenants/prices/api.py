"""REST: the price book. Rates are US dollars, as decimal text: per million tokens, use, second."""

from collections.abc import Callable
from dataclasses import dataclass

from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from console.accounts.selectors import Permission, actor_of, require, visible_tenant_ids
from console.errors import Forbidden
from console.rest.fields import (
    InstantField,
    OutSerializer,
    PageQuery,
    StrictFlag,
    StrictSerializer,
    StrictText,
    UsdField,
)
from console.rest.schema import endpoint, page_of
from console.rest.views import Endpoint, fields_named, key_before, shown, shown_page
from tenants.prices import selectors, services

_FIELDS = {
    "input_nanousd": "input_usd_per_mtok",
    "cached_nanousd": "cached_usd_per_mtok",
    "output_nanousd": "output_usd_per_mtok",
    "cache_write_nanousd": "cache_write_usd_per_mtok",
    "reasoning_nanousd": "reasoning_usd_per_mtok",
    "image_nanousd": "image_usd",
}


class PriceSerializer(OutSerializer):
    """One price row."""

    id = serializers.IntegerField()
    model = serializers.CharField()
    version = serializers.IntegerField()
    valid_from = InstantField()
    input_usd_per_mtok = UsdField(source="input_nanousd")
    cached_usd_per_mtok = UsdField(source="cached_nanousd")
    output_usd_per_mtok = UsdField(source="output_nanousd")
    cache_write_usd_per_mtok = UsdField(source="cache_write_nanousd", allow_null=True)
    reasoning_usd_per_mtok = UsdField(source="reasoning_nanousd", allow_null=True)
    image_usd = UsdField(source="image_nanousd")
    note = serializers.CharField()
    created_at = InstantField()


class PriceQuery(PageQuery):
    """Which rows to list."""

    model = serializers.CharField(required=False, max_length=200)


class PriceRequest(StrictSerializer):
    """A price to add. `confirm` accepts a rate that looks like a slip.

    Without their own rates, tokens written to the cache cost as input and reasoning as output.
    """

    model = StrictText(max_length=200)
    input_usd_per_mtok = UsdField()
    cached_usd_per_mtok = UsdField()
    output_usd_per_mtok = UsdField()
    cache_write_usd_per_mtok = UsdField(required=False, allow_null=True, default=None)
    reasoning_usd_per_mtok = UsdField(required=False, allow_null=True, default=None)
    image_usd = UsdField(required=False, default=0)
    valid_from = InstantField(required=False, allow_null=True, default=None)
    note = StrictText(max_length=200, required=False, default="", allow_blank=True)
    confirm = StrictFlag(required=False, default=False)


class AddedPriceSerializer(OutSerializer):
    """Which version the new row has."""

    model = serializers.CharField()
    version = serializers.IntegerField()


class Prices(Endpoint):
    """The price book."""

    @endpoint(
        operation_id="prices_list",
        query=PriceQuery,
        answer=page_of(PriceSerializer),
        summary="List prices",
    )
    def get(self, request: Request) -> Response:
        """Price rows, newest first; open to everyone who belongs to a tenant."""
        if visible_tenant_ids(self.user) == frozenset():
            raise Forbidden("This needs a role or a membership.")
        asked = self.query(PriceQuery)
        rows = selectors.prices(
            model=asked.get("model"),
            before_id=key_before(asked.get("after")),
            limit=asked["limit"] + 1,
        )
        return shown_page(PriceSerializer, rows, asked["limit"], lambda row: row.id)

    @endpoint(
        operation_id="prices_add",
        request=PriceRequest,
        answer=AddedPriceSerializer,
        status=201,
        summary="Add a price",
    )
    def post(self, request: Request) -> Response:
        """Add a model's next price; running requests keep theirs."""
        require(self.user, Permission.MANAGE_PRICES)
        asked = self.body(PriceRequest)
        with fields_named(_FIELDS):
            version = services.add_price(
                model=asked["model"],
                input_nanousd=asked["input_usd_per_mtok"],
                cached_nanousd=asked["cached_usd_per_mtok"],
                output_nanousd=asked["output_usd_per_mtok"],
                cache_write_nanousd=asked["cache_write_usd_per_mtok"],
                reasoning_nanousd=asked["reasoning_usd_per_mtok"],
                image_nanousd=asked["image_usd"],
                valid_from=asked["valid_from"],
                note=asked["note"],
                confirm=asked["confirm"],
                actor=actor_of(self.user),
            )
        answer = {"model": asked["model"], "version": version}
        return shown(AddedPriceSerializer, answer, status=201)


class SinglePriceSerializer(OutSerializer):
    """What prices of one rate share."""

    id = serializers.IntegerField()
    version = serializers.IntegerField()
    valid_from = InstantField()
    note = serializers.CharField()
    created_at = InstantField()


class SinglePriceRequest(StrictSerializer):
    """What adding one takes; `confirm` accepts a price that looks like a slip."""

    valid_from = InstantField(required=False, allow_null=True, default=None)
    note = StrictText(max_length=200, required=False, default="", allow_blank=True)
    confirm = StrictFlag(required=False, default=False)


class ResourcePriceSerializer(SinglePriceSerializer):
    """One price row of a named resource."""

    resource = serializers.CharField(source="name")
    unit_usd = UsdField(source="nanousd")


class ResourcePriceQuery(PageQuery):
    """Which rows to list."""

    resource = serializers.CharField(required=False, max_length=100)


class ResourcePriceRequest(SinglePriceRequest):
    """The price of one use of a resource; its first makes the resource known."""

    resource = StrictText(max_length=100)
    unit_usd = UsdField()


class AddedResourcePriceSerializer(OutSerializer):
    """Which version the new row has."""

    resource = serializers.CharField()
    version = serializers.IntegerField()


class PoolPriceSerializer(SinglePriceSerializer):
    """One price row of a pool's GPU-seconds."""

    pool = serializers.CharField(source="name")
    gpu_second_usd = UsdField(source="nanousd")


class PoolPriceQuery(PageQuery):
    """Which rows to list."""

    pool = serializers.CharField(required=False, max_length=120)


class PoolPriceRequest(SinglePriceRequest):
    """What a second of one GPU of a pool of ours costs."""

    pool = StrictText(max_length=120)
    gpu_second_usd = UsdField()


class AddedPoolPriceSerializer(OutSerializer):
    """Which version the new row has."""

    pool = serializers.CharField()
    version = serializers.IntegerField()


@dataclass(frozen=True, slots=True)
class _Single:
    """A kind of price of one rate: its field names, serializers, and who reads it."""

    subject: str
    rate: str
    column: str
    row: type[SinglePriceSerializer]
    query: type[PageQuery]
    request: type[SinglePriceRequest]
    added: type[OutSerializer]
    rows: Callable[..., list[selectors.SinglePriceView]]
    add: Callable[..., int]
    is_open: bool


def _endpoint_of(kind: _Single) -> type[Endpoint]:
    """The price book of that kind."""

    class SinglePrices(Endpoint):
        """The price book of one kind of subject."""

        @endpoint(
            operation_id=f"{kind.subject}_prices_list",
            query=kind.query,
            answer=page_of(kind.row),
            summary=f"List prices of {kind.subject}s",
        )
        def get(self, request: Request) -> Response:
            """Price rows, newest first."""
            if not kind.is_open:
                require(self.user, Permission.VIEW_ALL)
            elif visible_tenant_ids(self.user) == frozenset():
                raise Forbidden("This needs a role or a membership.")
            asked = self.query(kind.query)
            rows = kind.rows(
                name=asked.get(kind.subject),
                before_id=key_before(asked.get("after")),
                limit=asked["limit"] + 1,
            )
            return shown_page(kind.row, rows, asked["limit"], lambda row: row.id)

        @endpoint(
            operation_id=f"{kind.subject}_prices_add",
            request=kind.request,
            answer=kind.added,
            status=201,
            summary=f"Add a price of a {kind.subject}",
        )
        def post(self, request: Request) -> Response:
            """Add the next price; what runs keeps the one it began under."""
            require(self.user, Permission.MANAGE_PRICES)
            asked = self.body(kind.request)
            with fields_named({kind.column: kind.rate}):
                version = kind.add(
                    valid_from=asked["valid_from"],
                    note=asked["note"],
                    confirm=asked["confirm"],
                    actor=actor_of(self.user),
                    **{kind.subject: asked[kind.subject], kind.column: asked[kind.rate]},
                )
            return shown(
                kind.added, {kind.subject: asked[kind.subject], "version": version}, status=201
            )

    return SinglePrices


ResourcePrices = _endpoint_of(
    _Single(
        "resource",
        "unit_usd",
        "unit_nanousd",
        ResourcePriceSerializer,
        ResourcePriceQuery,
        ResourcePriceRequest,
        AddedResourcePriceSerializer,
        selectors.resource_prices,
        services.add_resource_price,
        is_open=True,
    )
)
# What pools cost us is the operator's own business.
PoolPrices = _endpoint_of(
    _Single(
        "pool",
        "gpu_second_usd",
        "gpu_second_nanousd",
        PoolPriceSerializer,
        PoolPriceQuery,
        PoolPriceRequest,
        AddedPoolPriceSerializer,
        selectors.pool_prices,
        services.add_pool_price,
        is_open=False,
    )
)
