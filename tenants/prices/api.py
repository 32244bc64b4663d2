"""REST: the price book. Rates are US dollars per million tokens, as decimal text."""

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


class ResourcePriceSerializer(OutSerializer):
    """One price row of a named resource."""

    id = serializers.IntegerField()
    resource = serializers.CharField()
    version = serializers.IntegerField()
    valid_from = InstantField()
    unit_usd = UsdField(source="unit_nanousd")
    note = serializers.CharField()
    created_at = InstantField()


class ResourcePriceQuery(PageQuery):
    """Which rows to list."""

    resource = serializers.CharField(required=False, max_length=100)


class ResourcePriceRequest(StrictSerializer):
    """The price of one use of a resource; its first makes the resource known."""

    resource = StrictText(max_length=100)
    unit_usd = UsdField()
    valid_from = InstantField(required=False, allow_null=True, default=None)
    note = StrictText(max_length=200, required=False, default="", allow_blank=True)


class AddedResourcePriceSerializer(OutSerializer):
    """Which version the new row has."""

    resource = serializers.CharField()
    version = serializers.IntegerField()


class ResourcePrices(Endpoint):
    """The price book of named resources."""

    @endpoint(
        operation_id="resource_prices_list",
        query=ResourcePriceQuery,
        answer=page_of(ResourcePriceSerializer),
        summary="List prices of resources",
    )
    def get(self, request: Request) -> Response:
        """Price rows, newest first; open to everyone who belongs to a tenant."""
        if visible_tenant_ids(self.user) == frozenset():
            raise Forbidden("This needs a role or a membership.")
        asked = self.query(ResourcePriceQuery)
        rows = selectors.resource_prices(
            resource=asked.get("resource"),
            before_id=key_before(asked.get("after")),
            limit=asked["limit"] + 1,
        )
        return shown_page(ResourcePriceSerializer, rows, asked["limit"], lambda row: row.id)

    @endpoint(
        operation_id="resource_prices_add",
        request=ResourcePriceRequest,
        answer=AddedResourcePriceSerializer,
        status=201,
        summary="Add a price of a resource",
    )
    def post(self, request: Request) -> Response:
        """Add a resource's next price; running uses keep theirs."""
        require(self.user, Permission.MANAGE_PRICES)
        asked = self.body(ResourcePriceRequest)
        with fields_named({"unit_nanousd": "unit_usd"}):
            version = services.add_resource_price(
                resource=asked["resource"],
                unit_nanousd=asked["unit_usd"],
                valid_from=asked["valid_from"],
                note=asked["note"],
                actor=actor_of(self.user),
            )
        answer = {"resource": asked["resource"], "version": version}
        return shown(AddedResourcePriceSerializer, answer, status=201)
