"""REST: the draft of a policy, guarded by `If-Match`, and publishing it."""

from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from console.accounts.selectors import Permission, actor_of, require
from console.errors import InvalidInput, NotFound
from console.rest.fields import (
    InstantField,
    OutSerializer,
    StrictInteger,
    StrictSerializer,
    StrictText,
)
from console.rest.schema import endpoint
from console.rest.views import Endpoint
from routing.policies import selectors, services, text
from routing.policies.api.shapes import (
    DiffLineSerializer,
    FindingSerializer,
    NotSaid,
    SentenceSerializer,
    tagged,
)
from routing.policies.rules.document import to_plain
from routing.policies.rules.listing import listed
from routing.policies.rules.validate import Checked

_DRAFT_TAG = "The ETag of the draft that this is made from."


class DraftCheckSerializer(OutSerializer):
    """One check: `ok`, `warn`, `refused`, or `waiting` until the form holds."""

    name = serializers.CharField()
    state = serializers.CharField()
    count = serializers.IntegerField()


class DraftSerializer(OutSerializer):
    """A draft with its checks. `is_stale`: another version than its base is live."""

    policy = serializers.CharField()
    base = serializers.IntegerField(allow_null=True)
    edition = serializers.IntegerField()
    text = serializers.CharField()
    note = serializers.CharField()
    author = serializers.CharField()
    saved_at = InstantField()
    is_stale = serializers.BooleanField()
    is_refused = serializers.BooleanField()
    checks = DraftCheckSerializer(many=True)
    findings = FindingSerializer(many=True)
    words = SentenceSerializer(many=True)
    lines = DiffLineSerializer(many=True)


class PublishedVersionSerializer(OutSerializer):
    """The version that the draft became."""

    policy = serializers.CharField()
    number = serializers.IntegerField()
    digest = serializers.CharField()
    note = serializers.CharField()
    created_at = InstantField()


class DraftRequest(StrictSerializer):
    """A document to keep on top of version `base` (null: of none; left out: of the live one)."""

    document = serializers.JSONField()
    base = StrictInteger(required=False, allow_null=True, min_value=1)
    note = StrictText(max_length=400, required=False, default="", allow_blank=True)


class DraftPublishRequest(StrictSerializer):
    """Why; kept with the version. Empty: the draft's own note."""

    note = StrictText(max_length=400, required=False, default="", allow_blank=True)


class Draft(Endpoint):
    """What is being written on top of a version."""

    @endpoint(operation_id="policy_draft_read", answer=DraftSerializer, summary="Read the draft")
    def get(self, request: Request, name: str) -> Response:
        """The draft with its checks and changes; its ETag is what `If-Match` takes."""
        require(self.user, Permission.VIEW_ALL)
        return _shown(name)

    @endpoint(
        operation_id="policy_draft_save",
        if_match=_DRAFT_TAG,
        request=DraftRequest,
        answer=DraftSerializer,
        summary="Save the draft",
    )
    def put(self, request: Request, name: str) -> Response:
        """Save it, valid or not. A present one needs `If-Match`; 409 if it is another now."""
        require(self.user, Permission.POLICY_PUBLISH)
        asked = self.body(DraftRequest)
        if not isinstance(asked["document"], dict):
            raise InvalidInput("A policy is a JSON object.", field="document")
        current = selectors.live(name)
        services.save_draft(
            policy=name,
            text=text.to_text(asked["document"]),
            base=asked.get("base", current.number if current else None),
            note=asked["note"],
            tag=_tag(request, name),
            actor=actor_of(self.user),
        )
        return _shown(name)

    @endpoint(
        operation_id="policy_draft_discard",
        if_match=_DRAFT_TAG,
        status=204,
        summary="Discard the draft",
    )
    def delete(self, request: Request, name: str) -> Response:
        """Throw it away; needs `If-Match`."""
        require(self.user, Permission.POLICY_PUBLISH)
        services.discard_draft(policy=name, tag=_tag(request, name), actor=actor_of(self.user))
        return Response(status=204)


class DraftPublish(Endpoint):
    """The draft as the next version."""

    @endpoint(
        operation_id="policy_draft_publish",
        if_match=_DRAFT_TAG,
        request=DraftPublishRequest,
        answer=PublishedVersionSerializer,
        status=201,
        summary="Publish the draft",
    )
    def post(self, request: Request, name: str) -> Response:
        """Publish it on its base and clear it; needs `If-Match`. 409 `stale_base` has the diff."""
        require(self.user, Permission.POLICY_PUBLISH)
        published = services.publish_draft(
            policy=name,
            tag=_tag(request, name),
            note=self.body(DraftPublishRequest)["note"],
            actor=actor_of(self.user),
        )
        data = PublishedVersionSerializer(published).data
        return tagged(Response(data, status=201), published.digest)


def _tag(request: Request, name: str) -> str:
    """The edition that the caller read, or for `*` whichever there is.

    Empty is right only while there is no draft.
    """
    sent = request.headers.get("If-Match", "").strip().strip('"')
    if sent and sent != "*":
        return sent
    kept = selectors.draft(name)
    if sent and kept is None:
        raise NotFound("There is no draft.", field="If-Match", hint="PUT one without If-Match.")
    if not sent and kept is not None:
        raise NotSaid(
            "Say which edition of the draft this is made from.",
            field="If-Match",
            hint="Send If-Match with the ETag of GET draft/.",
        )
    return kept.tag if kept else ""


def _shown(name: str) -> Response:
    kept = selectors.draft(name)
    if kept is None:
        raise NotFound("There is no draft.", hint="PUT one.")
    current = selectors.live(name)
    checked = services.check_document(text.parse_any(kept.text))
    changes = _changes(kept, checked)
    data = {
        **{field: getattr(kept, field) for field in _OWN},
        "saved_at": kept.saved_at,
        "is_stale": (current.number if current else None) != kept.base,
        "is_refused": checked.is_refused,
        "checks": listed(checked),
        "findings": checked.findings,
        "words": changes.words if changes else (),
        "lines": changes.lines if changes else (),
    }
    return tagged(Response(DraftSerializer(data).data), kept.tag)


_OWN = ("policy", "base", "edition", "text", "note", "author")


def _changes(kept: selectors.DraftView, checked: Checked) -> text.Comparison | None:
    """Against its base; None while it is no document yet, or has no base."""
    if checked.document is None or kept.base is None:
        return None
    base = selectors.version(kept.policy, kept.base)
    return text.compare(base.document, to_plain(checked.document))
