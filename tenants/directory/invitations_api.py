"""REST: invitations of people to a tenant. The secret of a link is shown once."""

from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from console.accounts.selectors import Permission, actor_of
from console.rest.fields import (
    InstantField,
    OutSerializer,
    StrictInteger,
    StrictSerializer,
    StrictText,
)
from console.rest.schema import endpoint
from console.rest.views import Endpoint, shown
from tenants.directory import inviting
from tenants.directory.access import open_tenant
from tenants.directory.rules import DEFAULT_INVITED_DAYS


class InvitationSerializer(OutSerializer):
    """An invitation that may still be accepted. `tenant` is the slug."""

    id = serializers.IntegerField()
    tenant = serializers.CharField()
    person = serializers.CharField()
    role = serializers.CharField()
    invited_by = serializers.CharField()
    created_at = InstantField()
    expires_at = InstantField()


class IssuedInvitationSerializer(OutSerializer):
    """A new invitation; the secret, also the last part of the link's path, is shown this once."""

    invitation = InvitationSerializer()
    secret = serializers.CharField()


class InvitationRequest(StrictSerializer):
    """Who is invited (user name or e-mail address), to what, and for how many days."""

    person = StrictText(max_length=254)
    role = StrictText(max_length=16)
    days = StrictInteger(required=False, default=DEFAULT_INVITED_DAYS)


class AcceptRequest(StrictSerializer):
    """The secret of a link."""

    secret = StrictText(max_length=inviting.MOST_SECRET_CHARS)


class Invitations(Endpoint):
    """A tenant's open invitations."""

    @endpoint(
        operation_id="invitations_list",
        answer=InvitationSerializer(many=True),
        summary="List open invitations",
    )
    def get(self, request: Request, slug: str) -> Response:
        """Newest first."""
        found = open_tenant(self.user, slug, Permission.TENANT_MANAGE_MEMBERS)
        return Response(InvitationSerializer(inviting.open_invitations(found.id), many=True).data)

    @endpoint(
        operation_id="invitations_create",
        request=InvitationRequest,
        answer=IssuedInvitationSerializer,
        status=201,
        summary="Invite a person",
    )
    def post(self, request: Request, slug: str) -> Response:
        """Make a link that this person alone can use, once; an earlier one of it ends."""
        found = open_tenant(self.user, slug, Permission.TENANT_MANAGE_MEMBERS)
        issued = inviting.invite(
            tenant_id=found.id,
            invited_by=self.user.pk,
            actor=actor_of(self.user),
            **self.body(InvitationRequest),
        )
        return shown(IssuedInvitationSerializer, issued, status=201)


class OneInvitation(Endpoint):
    """One open invitation."""

    @endpoint(
        operation_id="invitations_withdraw", status=204, summary="Withdraw an open invitation"
    )
    def delete(self, request: Request, slug: str, invitation_id: int) -> Response:
        """Its link stops working."""
        found = open_tenant(self.user, slug, Permission.TENANT_MANAGE_MEMBERS)
        inviting.withdraw(
            tenant_id=found.id, invitation_id=invitation_id, actor=actor_of(self.user)
        )
        return Response(status=204)


class AcceptInvitation(Endpoint):
    """Joining a tenant."""

    @endpoint(
        operation_id="invitations_accept",
        request=AcceptRequest,
        answer=InvitationSerializer,
        summary="Accept an invitation",
    )
    def post(self, request: Request) -> Response:
        """Become a member, once; only the person who was named may."""
        joined = inviting.accept(
            user=self.user,
            user_id=self.user.pk,
            actor=actor_of(self.user),
            **self.body(AcceptRequest),
        )
        return shown(InvitationSerializer, joined)
