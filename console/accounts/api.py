"""REST: who the caller is, and its automation tokens."""

from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from console.accounts.selectors import Permission, actor_of, can, tokens_of, visible_tenant_ids
from console.accounts.services import issue_token, revoke_token
from console.rest.fields import InstantField, OutSerializer, StrictSerializer, StrictText
from console.rest.schema import endpoint
from console.rest.views import Endpoint, shown


class MeSerializer(OutSerializer):
    """The caller."""

    username = serializers.CharField()
    role = serializers.CharField()
    grants = serializers.ListField(child=serializers.CharField())
    permissions = serializers.ListField(child=serializers.CharField())
    tenant_ids = serializers.ListField(child=serializers.IntegerField(), allow_null=True)


class TokenSerializer(OutSerializer):
    """A token without its secret."""

    id = serializers.IntegerField()
    name = serializers.CharField()
    prefix = serializers.CharField()
    created_at = InstantField()
    expires_at = InstantField(allow_null=True)
    revoked_at = InstantField(allow_null=True)
    last_used_at = InstantField(allow_null=True)


class TokenRequest(StrictSerializer):
    """A token to issue."""

    name = StrictText(max_length=80)
    expires_at = InstantField(required=False, allow_null=True, default=None)


class IssuedTokenSerializer(OutSerializer):
    """A new token; the secret is shown this once."""

    id = serializers.IntegerField()
    prefix = serializers.CharField()
    secret = serializers.CharField()


class Me(Endpoint):
    """The caller and what it may do."""

    @endpoint(operation_id="me", answer=MeSerializer, summary="Who am I, and what may I do")
    def get(self, request: Request) -> Response:
        """The caller. `tenant_ids` null means all tenants."""
        visible = visible_tenant_ids(self.user)
        return shown(
            MeSerializer,
            {
                "username": self.user.username,
                "role": self.user.role,
                "grants": self.user.grants,
                "permissions": sorted(item for item in Permission if can(self.user, item)),
                "tenant_ids": None if visible is None else sorted(visible),
            },
        )


class Tokens(Endpoint):
    """The caller's own tokens."""

    @endpoint(
        operation_id="tokens_list", answer=TokenSerializer(many=True), summary="List my tokens"
    )
    def get(self, request: Request) -> Response:
        """The caller's tokens, newest first."""
        return Response(TokenSerializer(tokens_of(self.user.pk), many=True).data)

    @endpoint(
        operation_id="tokens_issue",
        request=TokenRequest,
        answer=IssuedTokenSerializer,
        status=201,
        summary="Issue a token that acts as me",
    )
    def post(self, request: Request) -> Response:
        """Issue a token for the caller."""
        asked = self.body(TokenRequest)
        issued = issue_token(user_id=self.user.pk, actor=actor_of(self.user), **asked)
        return shown(IssuedTokenSerializer, issued, status=201)


class Token(Endpoint):
    """One of the caller's tokens."""

    @endpoint(operation_id="tokens_revoke", status=204, summary="Revoke one of my tokens")
    def delete(self, request: Request, token_id: int) -> Response:
        """Revoke it; a second time changes nothing."""
        revoke_token(user_id=self.user.pk, token_id=token_id, actor=actor_of(self.user))
        return Response(status=204)
