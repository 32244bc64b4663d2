"""REST: what answers about policies share: a version, a finding, a change, the ETag."""

from rest_framework import serializers
from rest_framework.response import Response

from console.errors import DomainError
from console.rest.fields import (
    InstantField,
    OutSerializer,
)
from console.rest.views import shown
from routing.policies.selectors import PolicyVersionView


class NotSaid(DomainError):  # noqa: N818 - named for what it says
    """A write that does not say what it stands on could undo another's work."""

    code = "precondition_required"
    status = 428


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


class FindingSerializer(OutSerializer):
    """What is wrong where, and what to do."""

    level = serializers.CharField()
    path = serializers.CharField()
    rule = serializers.CharField()
    reason = serializers.CharField()
    fix = serializers.CharField()


class SentenceSerializer(OutSerializer):
    """One change in words, the paths it covers, and whether somebody may get less than before."""

    text = serializers.CharField()
    paths = serializers.ListField(child=serializers.CharField())
    takes = serializers.BooleanField()


class DiffLineSerializer(OutSerializer):
    """A line of the text diff: `add`, `remove`, `same` or `skip` (hidden lines, counted)."""

    kind = serializers.CharField()
    text = serializers.CharField()


def tagged(response: Response, tag: str) -> Response:
    """The answer with the ETag that a later `If-Match` takes."""
    response.headers["ETag"] = f'"{tag}"'
    return response


def version_shown(found: PolicyVersionView) -> Response:
    """A version; its ETag is its digest."""
    return tagged(shown(PolicyVersionSerializer, found), found.digest)
