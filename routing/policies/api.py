"""REST: policies, their versions, publishing, and which gateway runs what."""

from typing import Any

from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from console.accounts.selectors import Permission, actor_of, require
from console.errors import DomainError, NotFound
from console.rest.fields import (
    InstantField,
    OutSerializer,
    PageQuery,
    StrictInteger,
    StrictSerializer,
    StrictText,
)
from console.rest.schema import endpoint, page_of
from console.rest.views import Endpoint, key_before, shown, shown_page
from routing.policies import selectors, services

_LIVE_TAG = "The ETag of the live version that this stands on."


class BaseNotSaid(DomainError):  # noqa: N818 - named for what it says
    """A publish that does not say on which version it stands could undo another's work."""

    code = "precondition_required"
    status = 428


class PolicySerializer(OutSerializer):
    """A policy and its live version."""

    name = serializers.CharField()
    live_number = serializers.IntegerField(allow_null=True)
    live_digest = serializers.CharField()
    created_at = InstantField()


class PolicyVersionSerializer(OutSerializer):
    """An immutable version, defaults filled in."""

    policy = serializers.CharField()
    number = serializers.IntegerField()
    label = serializers.CharField()  # type: ignore[assignment]  # `label` is also a field option
    digest = serializers.CharField()
    document = serializers.JSONField()
    note = serializers.CharField()
    author = serializers.CharField()
    created_at = InstantField()
    is_live = serializers.BooleanField()


class PublishedSerializer(PolicyVersionSerializer):
    """The live version after an act; `changed` is false if it was live before, with that effect."""

    changed = serializers.BooleanField()


class FindingSerializer(OutSerializer):
    """What is wrong where, and what to do."""

    level = serializers.CharField()
    path = serializers.CharField()
    rule = serializers.CharField()
    reason = serializers.CharField()
    fix = serializers.CharField()


class CheckSerializer(OutSerializer):
    """Every finding about a document."""

    is_refused = serializers.BooleanField()
    findings = FindingSerializer(many=True)


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


class DocumentRequest(StrictSerializer):
    """A document to check."""

    document = serializers.JSONField()


class PublishRequest(StrictSerializer):
    """A document to publish on top of the live version `base` (null: none is live yet).

    Instead of `base`, `If-Match` may carry the live version's digest.
    """

    document = serializers.JSONField()
    base = StrictInteger(required=False, allow_null=True, min_value=1)
    note = StrictText(max_length=400, required=False, default="", allow_blank=True)


class RollbackRequest(StrictSerializer):
    """On top of which live version, and why."""

    base = StrictInteger(required=False, allow_null=True, min_value=1)
    note = StrictText(max_length=400, required=False, default="", allow_blank=True)


class SentenceSerializer(OutSerializer):
    """One change in words, the paths it covers, and whether somebody may get less than before."""

    text = serializers.CharField()
    paths = serializers.ListField(child=serializers.CharField())
    takes = serializers.BooleanField()


class DiffLineSerializer(OutSerializer):
    """A line of the text diff: `add`, `remove`, `same` or `skip` (hidden lines, counted)."""

    kind = serializers.CharField()
    text = serializers.CharField()


class ComparisonSerializer(OutSerializer):
    """What changed, by effect and line by line."""

    words = SentenceSerializer(many=True)
    lines = DiffLineSerializer(many=True)


class PlanSerializer(OutSerializer):
    """A kept plan: apply it within an hour, while `base` is live."""

    plan = serializers.UUIDField(source="id")
    policy = serializers.CharField()
    base = serializers.IntegerField(allow_null=True)
    digest = serializers.CharField()
    changed = serializers.BooleanField()
    words = SentenceSerializer(source="comparison.words", many=True)
    lines = DiffLineSerializer(source="comparison.lines", many=True)
    findings = FindingSerializer(many=True)


class ApplyRequest(StrictSerializer):
    """Which plan, on top of which live version, and why.

    Instead of `base`, `If-Match` may carry the live version's digest.
    """

    plan = serializers.UUIDField()
    base = StrictInteger(required=False, allow_null=True, min_value=1)
    note = StrictText(max_length=400, required=False, default="", allow_blank=True)


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
            response.headers["ETag"] = f'"{found.live_digest}"'
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
        return _version(selectors.version(name, number))


class Check(Endpoint):
    """What would refuse a document."""

    @endpoint(
        operation_id="policies_check",
        is_read=True,
        request=DocumentRequest,
        answer=CheckSerializer,
        summary="Check a document",
    )
    def post(self, request: Request) -> Response:
        """Every finding at once; changes nothing."""
        require(self.user, Permission.VIEW_ALL)
        return shown(
            CheckSerializer, services.check_document(self.body(DocumentRequest)["document"])
        )


class Publish(Endpoint):
    """A new live version."""

    @endpoint(
        operation_id="policies_publish",
        if_match=_LIVE_TAG,
        request=PublishRequest,
        answer=PublishedSerializer,
        summary="Publish a version",
    )
    def post(self, request: Request, name: str) -> Response:
        """Publish it; the same effect again makes no version and answers `changed: false`."""
        require(self.user, Permission.POLICY_PUBLISH)
        asked = self.body(PublishRequest)
        base = _base(request, name, asked)
        published = services.publish(
            policy=name,
            document=asked["document"],
            base=base,
            note=asked["note"],
            actor=actor_of(self.user),
        )
        return _published(published, changed=published.number != base)


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
        return _version(found)


class Difference(Endpoint):
    """Two versions compared."""

    @endpoint(operation_id="policies_diff", answer=ComparisonSerializer, summary="Compare versions")
    def get(self, request: Request, name: str, before: int, after: int) -> Response:
        """From `before` to `after`."""
        require(self.user, Permission.VIEW_ALL)
        return shown(ComparisonSerializer, selectors.comparison(name, before, after))


class PlanIt(Endpoint):
    """What publishing a document would do."""

    @endpoint(
        operation_id="policies_plan",
        request=DocumentRequest,
        answer=PlanSerializer,
        summary="Plan a version",
    )
    def post(self, request: Request, name: str) -> Response:
        """Compare with the live version and keep the document; nothing is published."""
        require(self.user, Permission.POLICY_PUBLISH)
        asked = self.body(DocumentRequest)
        made = services.plan(policy=name, document=asked["document"], actor=actor_of(self.user))
        return shown(PlanSerializer, made)


class Apply(Endpoint):
    """A kept plan as the new live version."""

    @endpoint(
        operation_id="policies_apply",
        if_match=_LIVE_TAG,
        request=ApplyRequest,
        answer=PublishedSerializer,
        summary="Apply a plan",
    )
    def post(self, request: Request, name: str) -> Response:
        """Publish it if its base is still live; again, or to no effect, answers `changed: false`.

        The base that is said must be live as well.
        """
        require(self.user, Permission.POLICY_PUBLISH)
        asked = self.body(ApplyRequest)
        published, changed = services.apply_plan(
            policy=name,
            plan_id=asked["plan"],
            base=_base(request, name, asked),
            note=asked["note"],
            actor=actor_of(self.user),
        )
        return _published(published, changed=changed)


class Rollback(Endpoint):
    """An earlier version's content as the new live version."""

    @endpoint(
        operation_id="policies_roll_back",
        if_match=_LIVE_TAG,
        request=RollbackRequest,
        answer=PublishedSerializer,
        summary="Roll back to a version",
    )
    def post(self, request: Request, name: str, number: int) -> Response:
        """Publish that version's document again; `changed: false` if it has the live effect."""
        require(self.user, Permission.POLICY_PUBLISH)
        asked = self.body(RollbackRequest)
        base = _base(request, name, asked)
        published = services.roll_back(
            policy=name,
            number=number,
            base=base,
            note=asked["note"],
            actor=actor_of(self.user),
        )
        return _published(published, changed=published.number != base)


class SnapshotAcks(Endpoint):
    """Which gateway runs the newest snapshot."""

    @endpoint(operation_id="policies_acks", answer=AcksSerializer, summary="Acknowledgements")
    def get(self, request: Request) -> Response:
        """By the gateways' own word of the last seconds."""
        require(self.user, Permission.VIEW_ALL)
        return shown(AcksSerializer, selectors.acks())


def _version(found: selectors.PolicyVersionView) -> Response:
    response = shown(PolicyVersionSerializer, found)
    response.headers["ETag"] = f'"{found.digest}"'
    return response


def _published(found: selectors.PolicyVersionView, *, changed: bool) -> Response:
    """The live version; not changed if it was its own base: the act made none."""
    data = PolicyVersionSerializer(found).data
    response = Response({**data, "changed": changed})
    response.headers["ETag"] = f'"{found.digest}"'
    return response


def _base(request: Request, name: str, asked: dict[str, Any]) -> int | None:
    """The live version that the caller starts from, by number or by digest."""
    tag = request.headers.get("If-Match", "").strip()
    if not tag and "base" not in asked:
        raise BaseNotSaid(
            "Say on which live version this stands.",
            field="base",
            hint="Send base (null for the first version), or If-Match with the live ETag.",
        )
    if not tag:
        base: int | None = asked["base"]
        return base
    return _matched(name, tag)


def _matched(name: str, tag: str) -> int | None:
    """Number of the live version if it has that digest, or for `*`; raises `StaleBase`."""
    found = selectors.live(name)
    if found is not None and tag in ("*", f'"{found.digest}"', found.digest):
        return found.number
    selectors.policy(name)  # one that never was is not found
    refused = services.StaleBase(name, selectors.number_of(name, tag.strip('"')), found)
    refused.message, refused.field = "Another version is live.", "If-Match"
    raise refused
