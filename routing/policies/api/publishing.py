"""REST: check, plan and publish a document, or an earlier version again."""

from typing import Any

from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from console.accounts.selectors import Permission, actor_of, require
from console.rest.fields import (
    OutSerializer,
    StrictInteger,
    StrictSerializer,
    StrictText,
)
from console.rest.schema import endpoint
from console.rest.views import Endpoint, shown
from routing.policies import selectors, services
from routing.policies.api.shapes import (
    DiffLineSerializer,
    FindingSerializer,
    NotSaid,
    PolicyVersionSerializer,
    SentenceSerializer,
    tagged,
)

_LIVE_TAG = "The ETag of the live version that this stands on."


class PublishedSerializer(PolicyVersionSerializer):
    """The live version after an act; `changed` is false if it was live before, with that effect."""

    changed = serializers.BooleanField()


class CheckSerializer(OutSerializer):
    """Every finding about a document."""

    is_refused = serializers.BooleanField()
    findings = FindingSerializer(many=True)


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


class DocumentRequest(StrictSerializer):
    """A document to check."""

    document = serializers.JSONField()


class _OnTop(StrictSerializer):
    """On top of which live version (null: none is live yet), and why."""

    base = StrictInteger(required=False, allow_null=True, min_value=1)
    note = StrictText(max_length=400, required=False, default="", allow_blank=True)


class PublishRequest(_OnTop):
    """A document to publish on top of the live version `base` (null: none is live yet).

    Instead of `base`, `If-Match` may carry the live version's digest.
    """

    document = serializers.JSONField()


class ApplyRequest(_OnTop):
    """Which plan, on top of which live version, and why.

    Instead of `base`, `If-Match` may carry the live version's digest.
    """

    plan = serializers.UUIDField()


class RollbackRequest(_OnTop):
    """On top of which live version, and why."""


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


def _published(found: selectors.PolicyVersionView, *, changed: bool) -> Response:
    """The live version; not changed if it was its own base: the act made none."""
    data = PolicyVersionSerializer(found).data
    return tagged(Response({**data, "changed": changed}), found.digest)


def _base(request: Request, name: str, asked: dict[str, Any]) -> int | None:
    """The live version that the caller starts from, by number or by digest."""
    tag = request.headers.get("If-Match", "").strip()
    if not tag and "base" not in asked:
        raise NotSaid(
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
