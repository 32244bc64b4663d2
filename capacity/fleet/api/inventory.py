"""REST: the inventory's tables, row by row or from CSV, and where engines disagree with it."""

from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from capacity.fleet.catalogue import disagreements, table_page
from capacity.fleet.importer import ImportRefused, bring_in, kind_named
from capacity.fleet.rules.table import MAX_CHARS, row_of
from capacity.fleet.services.assets import put
from console.accounts.selectors import Permission, actor_of, require
from console.errors import InvalidInput
from console.rest.fields import (
    OutSerializer,
    PageQuery,
    StrictFlag,
    StrictSerializer,
    StrictText,
)
from console.rest.schema import endpoint, page_of
from console.rest.views import Endpoint, shown


class InventoryRowSerializer(OutSerializer):
    """A row of an inventory table: a value for each column of its kind."""

    values = serializers.DictField()


class InventoryPutRequest(StrictSerializer):
    """A row to have: made, changed or left alone, so it may be sent again."""

    values = serializers.DictField()


class InventoryPutSerializer(OutSerializer):
    """What became of the row: `created`, `changed` or `same`."""

    outcome = serializers.CharField()


class ImportRequest(StrictSerializer):
    """A CSV text with a header. A dry run says what it would do and does nothing."""

    csv = StrictText(max_length=MAX_CHARS, trim_whitespace=False)
    dry_run = StrictFlag(required=False, default=True)


class ImportFaultSerializer(OutSerializer):
    """What is wrong in a cell; `column` is empty for a whole line."""

    column = serializers.CharField()
    message = serializers.CharField()
    hint = serializers.CharField()


class ImportLineSerializer(OutSerializer):
    """A line and what it does: `created`, `changed`, `same` or `refused`."""

    line = serializers.IntegerField()
    name = serializers.CharField()
    outcome = serializers.CharField()
    faults = ImportFaultSerializer(many=True)


class ImportSerializer(OutSerializer):
    """What a file does, or did."""

    kind = serializers.CharField()
    is_applied = serializers.BooleanField()
    created = serializers.IntegerField()
    changed = serializers.IntegerField()
    same = serializers.IntegerField()
    refused = serializers.IntegerField()
    lines = ImportLineSerializer(many=True)


class DriftItemSerializer(OutSerializer):
    """One disagreement and what to do about it."""

    pool = serializers.CharField()
    replica = serializers.CharField()
    what = serializers.CharField()
    recorded = serializers.CharField()
    seen = serializers.CharField()
    next_step = serializers.CharField()


class DriftSerializer(OutSerializer):
    """Where record and engines disagree; `is_blind` while nothing is known of the engines."""

    drift = DriftItemSerializer(many=True)
    placement = DriftItemSerializer(many=True)
    pools = serializers.IntegerField()
    is_cut = serializers.BooleanField()
    is_blind = serializers.BooleanField()


class Inventory(Endpoint):
    """A table of the inventory."""

    @endpoint(
        operation_id="inventory_list",
        query=PageQuery,
        answer=page_of(InventoryRowSerializer),
        summary="List a table: region, domain, gpu_type, node, model, artifact or pool",
    )
    def get(self, request: Request, kind: str) -> Response:
        """In order of name."""
        require(self.user, Permission.VIEW_ALL)
        asked = self.query(PageQuery)
        page = table_page(kind, after=asked.get("after"), limit=asked["limit"])
        return Response({"items": [{"values": row} for row in page.rows], "next": page.next_after})

    @endpoint(
        operation_id="inventory_put",
        request=InventoryPutRequest,
        answer=InventoryPutSerializer,
        summary="Put a row: made, changed, or left alone",
    )
    def put(self, request: Request, kind: str) -> Response:
        """Repeated, it changes nothing."""
        require(self.user, Permission.MANAGE_FLEET)
        found = kind_named(kind)
        row = row_of(found, self.body(InventoryPutRequest)["values"])
        if row.faults:
            first = row.faults[0]
            raise InvalidInput(first.message, field=first.column, hint=first.hint)
        outcome = put(kind=kind, values=row.values, actor=actor_of(self.user))
        return Response({"outcome": outcome.value})


class InventoryImport(Endpoint):
    """CSV into a table."""

    @endpoint(
        operation_id="inventory_import",
        request=ImportRequest,
        answer=ImportSerializer,
        summary="Bring in a CSV file, or say what that would do: all of it or nothing",
    )
    def post(self, request: Request, kind: str) -> Response:
        """422 with a finding for each fault unless it is a dry run."""
        require(self.user, Permission.MANAGE_FLEET)
        asked = self.body(ImportRequest)
        report = bring_in(
            kind=kind, text=asked["csv"], actor=actor_of(self.user), is_dry_run=asked["dry_run"]
        )
        if not asked["dry_run"] and not report.is_applied:
            raise ImportRefused(report)
        return shown(ImportSerializer, report)


class Drift(Endpoint):
    """Record against engines."""

    @endpoint(
        operation_id="inventory_drift",
        answer=DriftSerializer,
        summary="Where the record and the engines disagree, and what is placed badly",
    )
    def get(self, request: Request) -> Response:
        """Of every pool."""
        require(self.user, Permission.VIEW_ALL)
        return shown(DriftSerializer, disagreements())
