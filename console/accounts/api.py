"""REST: who the caller is, its automation tokens, and people for admins."""

from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from console.accounts.selectors import (
    Permission,
    actor_of,
    can,
    people,
    person,
    require,
    tokens_of,
    visible_tenant_ids,
)
from console.accounts.services import (
    change_role,
    create_user,
    end_sessions,
    issue_token,
    restore_user,
    revoke_token,
    suspend_user,
)
from console.models import Grant, Role
from console.rest.fields import InstantField, OutSerializer, PageQuery, StrictSerializer, StrictText
from console.rest.schema import endpoint, page_of
from console.rest.views import Endpoint, shown, shown_page


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


class UserSerializer(OutSerializer):
    """A person."""

    id = serializers.IntegerField()
    username = serializers.CharField()
    email = serializers.CharField()
    role = serializers.CharField()
    grants = serializers.ListField(child=serializers.CharField())
    is_active = serializers.BooleanField()
    tenants = serializers.IntegerField(help_text="Memberships.")
    live_tokens = serializers.IntegerField()
    last_login_at = InstantField(allow_null=True)
    created_at = InstantField()


_ROLES = "One of " + ", ".join(Role.values) + "."
_GRANTS = "For operators: any of " + ", ".join(Grant.values) + "."


class UserRequest(StrictSerializer):
    """A person to create."""

    username = StrictText(max_length=150)
    email = StrictText(max_length=254, required=False, allow_blank=True, default="")
    password = StrictText(max_length=256, trim_whitespace=False)
    role = StrictText(max_length=16, required=False, default="none", help_text=_ROLES)
    grants = serializers.ListField(
        child=StrictText(max_length=32), required=False, max_length=50, help_text=_GRANTS
    )


class UserChange(StrictSerializer):
    """What to change; the rest stays."""

    role = StrictText(max_length=16, required=False, help_text=_ROLES)
    grants = serializers.ListField(
        child=StrictText(max_length=32), required=False, max_length=50, help_text=_GRANTS
    )
    reason = StrictText(max_length=400)


class UserReason(StrictSerializer):
    """Why."""

    reason = StrictText(max_length=400)


class Users(Endpoint):
    """People who may sign in."""

    @endpoint(
        operation_id="users_list",
        query=PageQuery,
        answer=page_of(UserSerializer),
        summary="List people",
    )
    def get(self, request: Request) -> Response:
        """In order of user name; admins only."""
        require(self.user, Permission.MANAGE_ROLES)
        asked = self.query(PageQuery)
        found = people(after_username=asked.get("after", ""), limit=asked["limit"] + 1)
        return shown_page(UserSerializer, found, asked["limit"], lambda row: row.username)

    @endpoint(
        operation_id="users_create",
        request=UserRequest,
        answer=UserSerializer,
        status=201,
        summary="Create a person",
    )
    def post(self, request: Request) -> Response:
        """Create a person with a first password; admins only."""
        require(self.user, Permission.MANAGE_ROLES)
        made = create_user(actor=actor_of(self.user), **self.body(UserRequest))
        return shown(UserSerializer, person(made), status=201)


class OneUser(Endpoint):
    """One person."""

    @endpoint(operation_id="users_read", answer=UserSerializer, summary="Read a person")
    def get(self, request: Request, user_id: int) -> Response:
        """The person; admins only."""
        require(self.user, Permission.MANAGE_ROLES)
        return shown(UserSerializer, person(user_id))

    @endpoint(
        operation_id="users_change",
        request=UserChange,
        answer=UserSerializer,
        summary="Change a person's role and grants",
    )
    def patch(self, request: Request, user_id: int) -> Response:
        """Change what is given; the last admin keeps the role."""
        require(self.user, Permission.MANAGE_ROLES)
        asked = self.body(UserChange)
        held = person(user_id)
        change_role(
            user_id=user_id,
            role=asked.get("role", held.role),
            grants=asked.get("grants", held.grants),
            reason=asked["reason"],
            actor=actor_of(self.user),
        )
        return shown(UserSerializer, person(user_id))


class UserSuspend(Endpoint):
    """Refuse a person."""

    @endpoint(
        operation_id="users_suspend",
        request=UserReason,
        answer=UserSerializer,
        summary="Suspend a person",
    )
    def post(self, request: Request, user_id: int) -> Response:
        """Sessions end and tokens stop; a second time changes nothing."""
        require(self.user, Permission.MANAGE_ROLES)
        suspend_user(user_id=user_id, actor=actor_of(self.user), **self.body(UserReason))
        return shown(UserSerializer, person(user_id))


class UserRestore(Endpoint):
    """Let a suspended person in again."""

    @endpoint(
        operation_id="users_restore",
        request=UserReason,
        answer=UserSerializer,
        summary="Restore a person",
    )
    def post(self, request: Request, user_id: int) -> Response:
        """A second time changes nothing."""
        require(self.user, Permission.MANAGE_ROLES)
        restore_user(user_id=user_id, actor=actor_of(self.user), **self.body(UserReason))
        return shown(UserSerializer, person(user_id))


class UserSignOut(Endpoint):
    """End a person's sessions."""

    @endpoint(
        operation_id="users_sign_out",
        request=UserReason,
        status=204,
        summary="Sign a person out everywhere",
    )
    def post(self, request: Request, user_id: int) -> Response:
        """Sessions end; tokens go on working."""
        require(self.user, Permission.MANAGE_ROLES)
        end_sessions(user_id=user_id, actor=actor_of(self.user), **self.body(UserReason))
        return Response(status=204)
