"""REST: the audit trail and its verification."""

from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from console.accounts.selectors import Permission, require
from console.audit.selectors import AuditFilter, trail, verify_chain
from console.rest.fields import InstantField, OutSerializer, PageQuery
from console.rest.schema import endpoint, page_of
from console.rest.views import Endpoint, key_before, shown, shown_page


class AuditEventSerializer(OutSerializer):
    """One act."""

    id = serializers.IntegerField()
    at = InstantField()
    actor = serializers.CharField()
    act = serializers.CharField()
    object_type = serializers.CharField()
    object_id = serializers.CharField()
    tenant_id = serializers.IntegerField(allow_null=True)
    reason = serializers.CharField()
    before = serializers.JSONField(allow_null=True)
    after = serializers.JSONField(allow_null=True)
    request_id = serializers.CharField()
    hash = serializers.CharField()


class AuditQuery(PageQuery):
    """Which acts to list."""

    tenant_id = serializers.IntegerField(required=False)
    actor_id = serializers.IntegerField(required=False)
    object_type = serializers.CharField(required=False, max_length=64)
    object_id = serializers.CharField(required=False, max_length=64)


class ChainSerializer(OutSerializer):
    """Result of reading the whole chain."""

    is_intact = serializers.BooleanField()
    checked_count = serializers.IntegerField()
    broken_at_id = serializers.IntegerField(allow_null=True)
    last_hash = serializers.CharField()


class Trail(Endpoint):
    """The audit trail."""

    @endpoint(
        operation_id="audit_list",
        query=AuditQuery,
        answer=page_of(AuditEventSerializer),
        summary="List audited acts",
    )
    def get(self, request: Request) -> Response:
        """Acts, newest first."""
        require(self.user, Permission.VIEW_AUDIT)
        asked = self.query(AuditQuery)
        tenant_id = asked.get("tenant_id")
        found = trail(
            AuditFilter(
                tenant_ids=None if tenant_id is None else frozenset({tenant_id}),
                actor_id=asked.get("actor_id"),
                object_type=asked.get("object_type"),
                object_id=asked.get("object_id"),
            ),
            before_id=key_before(asked.get("after")),
            limit=asked["limit"] + 1,
        )
        return shown_page(AuditEventSerializer, found, asked["limit"], lambda line: line.id)


class Verification(Endpoint):
    """The proof that the trail was not tampered with."""

    @endpoint(operation_id="audit_verify", answer=ChainSerializer, summary="Verify the chain")
    def get(self, request: Request) -> Response:
        """Read the whole chain."""
        require(self.user, Permission.EXPORT_AUDIT)
        return shown(ChainSerializer, verify_chain())
