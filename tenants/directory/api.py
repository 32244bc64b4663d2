"""REST: tenants, their projects and members."""

from typing import Any

from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from console.accounts.selectors import (
    Permission,
    actor_of,
    person_named,
    person_numbered,
    require,
    visible_tenant_ids,
)
from console.rest.fields import (
    InstantField,
    OutSerializer,
    PageQuery,
    StrictInteger,
    StrictSerializer,
    StrictText,
)
from console.rest.schema import endpoint, page_of
from console.rest.views import Endpoint, fields_named, shown, shown_page
from tenants.directory import selectors, services
from tenants.directory.access import open_tenant, open_to_add


class TenantSerializer(OutSerializer):
    """A tenant."""

    id = serializers.IntegerField()
    slug = serializers.CharField()
    name = serializers.CharField()
    state = serializers.CharField()
    timezone = serializers.CharField()
    default_class = serializers.CharField()
    allowed_models = serializers.ListField(child=serializers.CharField())
    created_at = InstantField()


class ProjectSerializer(OutSerializer):
    """A project."""

    id = serializers.IntegerField()
    slug = serializers.CharField()
    name = serializers.CharField()
    created_at = InstantField()


class MemberSerializer(OutSerializer):
    """A member."""

    user_id = serializers.IntegerField()
    username = serializers.CharField()
    email = serializers.CharField(
        help_text="Empty unless the caller is an operator, an admin or this person."
    )
    role = serializers.CharField()
    since = InstantField()


class TenantRequest(StrictSerializer):
    """A tenant to create."""

    slug = StrictText(max_length=63)
    name = StrictText(max_length=200)
    timezone = StrictText(max_length=64, required=False)
    allowed_models = serializers.ListField(child=StrictText(max_length=200), required=False)
    default_class = StrictText(max_length=16, required=False)


class TenantChange(StrictSerializer):
    """What to change; the rest stays."""

    name = StrictText(max_length=200, required=False)
    timezone = StrictText(max_length=64, required=False)
    allowed_models = serializers.ListField(child=StrictText(max_length=200), required=False)
    default_class = StrictText(max_length=16, required=False)
    reason = StrictText(max_length=400, required=False, allow_blank=True)


class ReasonRequest(StrictSerializer):
    """Why."""

    reason = StrictText(max_length=400)


class ProjectRequest(StrictSerializer):
    """A project to create."""

    slug = StrictText(max_length=63)
    name = StrictText(max_length=200)


class ProjectChange(StrictSerializer):
    """A project's new name."""

    name = StrictText(max_length=200)


class MemberRequest(StrictSerializer):
    """A person, by id or by user name, and a role."""

    user_id = StrictInteger(min_value=1, required=False)
    username = StrictText(max_length=254, required=False, help_text="Or the e-mail address.")
    role = StrictText(max_length=16)

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        """Exactly one of the two names. Raises `ValidationError`."""
        if ("user_id" in attrs) == ("username" in attrs):
            raise serializers.ValidationError(
                {"user_id": serializers.ErrorDetail("Say user_id or username.", code="invalid")}
            )
        return attrs


class MemberChange(StrictSerializer):
    """A member's new role."""

    role = StrictText(max_length=16)


class Tenants(Endpoint):
    """Tenants that the caller may see."""

    @endpoint(
        operation_id="tenants_list",
        query=PageQuery,
        answer=page_of(TenantSerializer),
        summary="List tenants",
    )
    def get(self, request: Request) -> Response:
        """In order of slug."""
        asked = self.query(PageQuery)
        found = selectors.tenants(
            visible_tenant_ids(self.user),
            after_slug=asked.get("after", ""),
            limit=asked["limit"] + 1,
        )
        return shown_page(TenantSerializer, found, asked["limit"], lambda row: row.slug)

    @endpoint(
        operation_id="tenants_create",
        request=TenantRequest,
        answer=TenantSerializer,
        status=201,
        summary="Create a tenant",
    )
    def post(self, request: Request) -> Response:
        """Create it with its default project."""
        require(self.user, Permission.MANAGE_TENANTS)
        asked = self.body(TenantRequest)
        tenant_id = services.create_tenant(actor=actor_of(self.user), **asked)
        return shown(TenantSerializer, selectors.tenant(tenant_id), status=201)


class Tenant(Endpoint):
    """One tenant."""

    @endpoint(operation_id="tenants_read", answer=TenantSerializer, summary="Read a tenant")
    def get(self, request: Request, slug: str) -> Response:
        """The tenant."""
        return shown(TenantSerializer, open_tenant(self.user, slug))

    @endpoint(
        operation_id="tenants_update",
        request=TenantChange,
        answer=TenantSerializer,
        summary="Change a tenant",
    )
    def patch(self, request: Request, slug: str) -> Response:
        """Change what is given."""
        found = open_tenant(self.user, slug, Permission.MANAGE_TENANTS)
        asked = self.body(TenantChange)
        services.update_tenant(tenant_id=found.id, actor=actor_of(self.user), **asked)
        return shown(TenantSerializer, selectors.tenant(found.id))


class TenantSuspend(Endpoint):
    """Refuse a tenant's requests."""

    @endpoint(
        operation_id="tenants_suspend",
        request=ReasonRequest,
        answer=TenantSerializer,
        summary="Suspend a tenant",
    )
    def post(self, request: Request, slug: str) -> Response:
        """Suspend it; its data stays."""
        found = open_tenant(self.user, slug, Permission.MANAGE_TENANTS)
        reason = self.body(ReasonRequest)["reason"]
        services.suspend_tenant(tenant_id=found.id, actor=actor_of(self.user), reason=reason)
        return shown(TenantSerializer, selectors.tenant(found.id))


class TenantRestore(Endpoint):
    """Serve a suspended tenant again."""

    @endpoint(
        operation_id="tenants_restore",
        request=ReasonRequest,
        answer=TenantSerializer,
        summary="Restore a tenant",
    )
    def post(self, request: Request, slug: str) -> Response:
        """Restore it."""
        found = open_tenant(self.user, slug, Permission.MANAGE_TENANTS)
        reason = self.body(ReasonRequest)["reason"]
        services.restore_tenant(tenant_id=found.id, actor=actor_of(self.user), reason=reason)
        return shown(TenantSerializer, selectors.tenant(found.id))


class Projects(Endpoint):
    """A tenant's projects."""

    @endpoint(
        operation_id="projects_list",
        answer=ProjectSerializer(many=True),
        summary="List projects",
    )
    def get(self, request: Request, slug: str) -> Response:
        """In order of slug."""
        found = open_tenant(self.user, slug)
        return Response(ProjectSerializer(selectors.projects(found.id), many=True).data)

    @endpoint(
        operation_id="projects_create",
        request=ProjectRequest,
        answer=ProjectSerializer,
        status=201,
        summary="Create a project",
    )
    def post(self, request: Request, slug: str) -> Response:
        """Create it."""
        found = open_tenant(self.user, slug, Permission.TENANT_MANAGE_KEYS)
        asked = self.body(ProjectRequest)
        made = services.create_project(tenant_id=found.id, actor=actor_of(self.user), **asked)
        return shown(ProjectSerializer, selectors.project(found.id, made), status=201)


class Project(Endpoint):
    """One project."""

    @endpoint(
        operation_id="projects_rename",
        request=ProjectChange,
        status=204,
        summary="Rename a project",
    )
    def patch(self, request: Request, slug: str, project_id: int) -> Response:
        """Give it another name."""
        found = open_tenant(self.user, slug, Permission.TENANT_MANAGE_KEYS)
        services.rename_project(
            tenant_id=found.id,
            project_id=project_id,
            actor=actor_of(self.user),
            **self.body(ProjectChange),
        )
        return Response(status=204)


class Members(Endpoint):
    """A tenant's members."""

    @endpoint(
        operation_id="members_list", answer=MemberSerializer(many=True), summary="List members"
    )
    def get(self, request: Request, slug: str) -> Response:
        """In order of name."""
        found = open_tenant(self.user, slug)
        return Response(
            MemberSerializer(selectors.members(found.id, viewer=self.user), many=True).data
        )

    @endpoint(operation_id="members_add", request=MemberRequest, status=204, summary="Add a member")
    def post(self, request: Request, slug: str) -> Response:
        """Give a person a role, unasked: operators and admins alone, others invite."""
        found = open_to_add(self.user, slug)
        asked = self.body(MemberRequest)
        named = asked.get("username")
        if named is None:
            user_id = person_numbered(asked["user_id"], field="user_id")
        else:
            user_id = person_named(named, field="username")
        with fields_named({} if named is None else {"user_id": "username"}):
            services.add_member(
                tenant_id=found.id, user_id=user_id, role=asked["role"], actor=actor_of(self.user)
            )
        return Response(status=204)


class Member(Endpoint):
    """One member."""

    @endpoint(
        operation_id="members_change",
        request=MemberChange,
        status=204,
        summary="Change a member's role",
    )
    def patch(self, request: Request, slug: str, user_id: int) -> Response:
        """Change the role."""
        found = open_tenant(self.user, slug, Permission.TENANT_MANAGE_MEMBERS)
        services.change_member_role(
            tenant_id=found.id,
            user_id=user_id,
            actor=actor_of(self.user),
            **self.body(MemberChange),
        )
        return Response(status=204)

    @endpoint(operation_id="members_remove", status=204, summary="Remove a member")
    def delete(self, request: Request, slug: str, user_id: int) -> Response:
        """Take the person out of the tenant."""
        found = open_tenant(self.user, slug, Permission.TENANT_MANAGE_MEMBERS)
        services.remove_member(tenant_id=found.id, user_id=user_id, actor=actor_of(self.user))
        return Response(status=204)
