"""REST: API keys. A secret is shown once, in the answer that makes it."""

from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from console.accounts.selectors import Permission, actor_of
from console.rest.fields import (
    InstantField,
    OutSerializer,
    PageQuery,
    StrictInteger,
    StrictSerializer,
    StrictText,
)
from console.rest.requests import idempotency_key_of
from console.rest.schema import endpoint, page_of
from console.rest.views import Endpoint, key_before, shown, shown_page
from tenants.directory.access import open_tenant
from tenants.keys import selectors, services
from tenants.keys.rules import DEFAULT_GRACE_S


class KeySerializer(OutSerializer):
    """A key without its secret. `previous_until`: until when the earlier secret works too."""

    id = serializers.IntegerField()
    project_id = serializers.IntegerField()
    project = serializers.CharField()
    name = serializers.CharField()
    prefix = serializers.CharField()
    allowed_models = serializers.ListField(child=serializers.CharField())
    work_class = serializers.CharField()
    created_at = InstantField()
    expires_at = InstantField(allow_null=True)
    revoked_at = InstantField(allow_null=True)
    previous_until = InstantField(allow_null=True)


class IssuedKeySerializer(OutSerializer):
    """A key's new secret, shown this once."""

    id = serializers.IntegerField()
    prefix = serializers.CharField()
    secret = serializers.CharField()


class KeyRequest(StrictSerializer):
    """A key to issue. An empty `allowed_models` allows none; `*` must be said."""

    name = StrictText(max_length=120)
    project_id = StrictInteger(min_value=1, required=False)
    allowed_models = serializers.ListField(child=StrictText(max_length=200))
    work_class = StrictText(max_length=16, required=False, allow_blank=True)
    expires_at = InstantField(required=False, allow_null=True)


class RotateRequest(StrictSerializer):
    """How long the earlier secret goes on working, in seconds."""

    grace_s = StrictInteger(required=False, default=DEFAULT_GRACE_S)


class Keys(Endpoint):
    """A tenant's keys."""

    @endpoint(
        operation_id="keys_list",
        query=PageQuery,
        answer=page_of(KeySerializer),
        summary="List keys",
    )
    def get(self, request: Request, slug: str) -> Response:
        """Newest first."""
        found = open_tenant(self.user, slug)
        asked = self.query(PageQuery)
        rows = selectors.keys(
            found.id, before_id=key_before(asked.get("after")), limit=asked["limit"] + 1
        )
        return shown_page(KeySerializer, rows, asked["limit"], lambda row: row.id)

    @endpoint(
        operation_id="keys_issue",
        request=KeyRequest,
        answer=IssuedKeySerializer,
        status=201,
        summary="Issue a key",
    )
    def post(self, request: Request, slug: str) -> Response:
        """Issue it. The same Idempotency-Key gives the same key and secret again."""
        found = open_tenant(self.user, slug, Permission.TENANT_MANAGE_KEYS)
        asked = self.body(KeyRequest)
        issued = services.issue_key(
            tenant_id=found.id,
            actor=actor_of(self.user),
            idempotency_key=idempotency_key_of(request),
            **asked,
        )
        return shown(IssuedKeySerializer, issued, status=201)


class Key(Endpoint):
    """One key."""

    @endpoint(operation_id="keys_read", answer=KeySerializer, summary="Read a key")
    def get(self, request: Request, slug: str, key_id: int) -> Response:
        """The key."""
        found = open_tenant(self.user, slug)
        return shown(KeySerializer, selectors.key(found.id, key_id))

    @endpoint(operation_id="keys_revoke", status=204, summary="Revoke a key")
    def delete(self, request: Request, slug: str, key_id: int) -> Response:
        """End it and both its secrets; a second time changes nothing."""
        found = open_tenant(self.user, slug, Permission.TENANT_MANAGE_KEYS)
        services.revoke_key(tenant_id=found.id, key_id=key_id, actor=actor_of(self.user))
        return Response(status=204)


class KeyRotate(Endpoint):
    """A new secret for a key."""

    @endpoint(
        operation_id="keys_rotate",
        request=RotateRequest,
        answer=IssuedKeySerializer,
        summary="Rotate a key",
    )
    def post(self, request: Request, slug: str, key_id: int) -> Response:
        """Rotate it. The same Idempotency-Key gives the same secret again."""
        found = open_tenant(self.user, slug, Permission.TENANT_MANAGE_KEYS)
        issued = services.rotate_key(
            tenant_id=found.id,
            key_id=key_id,
            grace_s=self.body(RotateRequest)["grace_s"],
            actor=actor_of(self.user),
            idempotency_key=idempotency_key_of(request),
        )
        return shown(IssuedKeySerializer, issued)
