"""REST: policies, their versions, what changed between two, and which gateway runs what."""

from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from console.accounts.selectors import Permission, require
from console.errors import NotFound
from console.rest.fields import (
    InstantField,
    OutSerializer,
    PageQuery,
    StrictSerializer,
)
from console.rest.schema import endpoint, page_of
from console.rest.views import Endpoint, key_before, shown, shown_page
from routing.policies import selectors
from routing.policies.api.shapes import (
    DiffLineSerializer,
    PolicyVersionSerializer,
    SentenceSerializer,
    tagged,
    version_shown,
)


class PolicySerializer(OutSerializer):
    """A policy and its live version."""

    name = serializers.CharField()
    live_number = serializers.IntegerField(allow_null=True)
    live_digest = serializers.CharField()
    created_at = InstantField()


class GatewayAckSerializer(OutSerializer):
    """What a gateway says it runs."""

    gateway_id = serializers.CharField()
    snapshot_number = serializers.IntegerField()
    policy = serializers.CharField()
    state = serializers.CharField()
    age_s = serializers.FloatField()
    is_current = serializers.BooleanField()


class SnapshotSerializer(OutSerializer):
    """The newest compiled snapshot."""

    number = serializers.IntegerField()
    policy = serializers.CharField()
    created_at = InstantField()


class AcksSerializer(OutSerializer):
    """Acknowledgements; `is_known` is false while the store is away."""

    snapshot = SnapshotSerializer(allow_null=True)
    gateways = GatewayAckSerializer(many=True)
    is_known = serializers.BooleanField()


class ComparisonSerializer(OutSerializer):
    """What changed, by effect and line by line."""

    words = SentenceSerializer(many=True)
    lines = DiffLineSerializer(many=True)


class Policies(Endpoint):
    """All policies."""

    @endpoint(
        operation_id="policies_list",
        answer=PolicySerializer(many=True),
        summary="List policies",
    )
    def get(self, request: Request) -> Response:
        """In order of name."""
        require(self.user, Permission.VIEW_ALL)
        return Response(PolicySerializer(selectors.policies(), many=True).data)


class Policy(Endpoint):
    """One policy."""

    @endpoint(operation_id="policies_read", answer=PolicySerializer, summary="Read a policy")
    def get(self, request: Request, name: str) -> Response:
        """The policy; its ETag is the live version's digest."""
        require(self.user, Permission.VIEW_ALL)
        found = selectors.policy(name)
        response = shown(PolicySerializer, found)
        if found.live_digest:
            tagged(response, found.live_digest)
        return response


class Versions(Endpoint):
    """A policy's versions."""

    @endpoint(
        operation_id="policy_versions_list",
        query=PageQuery,
        answer=page_of(PolicyVersionSerializer),
        summary="List versions",
    )
    def get(self, request: Request, name: str) -> Response:
        """Newest first."""
        require(self.user, Permission.VIEW_ALL)
        asked = self.query(PageQuery)
        rows = selectors.versions(
            name, before_number=key_before(asked.get("after")), limit=asked["limit"] + 1
        )
        return shown_page(PolicyVersionSerializer, rows, asked["limit"], lambda row: row.number)


class Version(Endpoint):
    """One version."""

    @endpoint(
        operation_id="policy_versions_read",
        answer=PolicyVersionSerializer,
        summary="Read a version",
    )
    def get(self, request: Request, name: str, number: int) -> Response:
        """The version; its ETag is its digest."""
        require(self.user, Permission.VIEW_ALL)
        return version_shown(selectors.version(name, number))


class Export(Endpoint):
    """The live document, to keep in a repository and to plan from."""

    @endpoint(
        operation_id="policies_export",
        answer=PolicyVersionSerializer,
        summary="Export the live document",
    )
    def get(self, request: Request, name: str) -> Response:
        """The live version, defaults filled in; its ETag is what `If-Match` takes."""
        require(self.user, Permission.VIEW_ALL)
        self.query(StrictSerializer)  # a version that is asked for here would be passed over
        found = selectors.live(name)
        if found is None:
            raise NotFound("No version of this policy is live.")
        return version_shown(found)


class Difference(Endpoint):
    """Two versions compared."""

    @endpoint(operation_id="policies_diff", answer=ComparisonSerializer, summary="Compare versions")
    def get(self, request: Request, name: str, before: int, after: int) -> Response:
        """From `before` to `after`."""
        require(self.user, Permission.VIEW_ALL)
        return shown(ComparisonSerializer, selectors.comparison(name, before, after))


class SnapshotAcks(Endpoint):
    """Which gateway runs the newest snapshot."""

    @endpoint(operation_id="policies_acks", answer=AcksSerializer, summary="Acknowledgements")
    def get(self, request: Request) -> Response:
        """By the gateways' own word of the last seconds."""
        require(self.user, Permission.VIEW_ALL)
        return shown(AcksSerializer, selectors.acks())
