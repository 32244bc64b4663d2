"""REST: hooks, with how they do at the gateways. Secrets go in and never come out."""

from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from console.accounts.selectors import Permission, actor_of, require
from console.errors import BadCursor
from console.rest.fields import (
    InstantField,
    OfferedField,
    OutSerializer,
    PageQuery,
    StrictSerializer,
    StrictText,
)
from console.rest.schema import endpoint, page_of
from console.rest.views import Endpoint, shown, shown_page
from routing.contracts.hooks import HookKind
from routing.hooks import selectors
from routing.hooks.rules import NAME
from routing.hooks.services import add_hook, change_hook, remove_hook


class HookUseSerializer(OutSerializer):
    """A line of a live policy; no `classes` are all of them."""

    policy = serializers.CharField()
    at = serializers.CharField()
    deadline_ms = serializers.IntegerField()
    on_failure = serializers.CharField()
    classes = serializers.ListField(child=serializers.CharField())


class HookStateSerializer(OutSerializer):
    """At the living gateways together, each counting since it started.

    `state` is `unused`, `idle`, `ok` or `failing`; `p95_s` is of the last five to ten minutes.
    """

    state = serializers.CharField()
    gateways = serializers.IntegerField()
    passed = serializers.IntegerField()
    refused = serializers.IntegerField()
    failed = serializers.IntegerField()
    skipped = serializers.IntegerField()
    p95_s = serializers.FloatField(allow_null=True)
    error = serializers.CharField()
    error_at = InstantField(allow_null=True)


class HookSerializer(OutSerializer):
    """A hook; `health` is null while the store is away."""

    name = serializers.CharField()
    kind = serializers.CharField()
    url = serializers.CharField()
    entry_point = serializers.CharField()
    secret_hint = serializers.CharField()
    secret_set_at = InstantField(allow_null=True)
    purpose = serializers.CharField()
    created_at = InstantField()
    uses = HookUseSerializer(many=True)
    health = HookStateSerializer(allow_null=True)


class HookRequest(StrictSerializer):
    """A webhook has `url` and `secret`, a Python hook `entry_point`."""

    name = StrictText(max_length=40)
    kind = OfferedField(choices=[kind.value for kind in HookKind])
    url = StrictText(max_length=500, required=False, allow_blank=True, default="")
    secret = StrictText(max_length=200, required=False, allow_blank=True, default="")
    entry_point = StrictText(max_length=80, required=False, allow_blank=True, default="")
    purpose = StrictText(max_length=200, required=False, allow_blank=True, default="")


class HookChange(StrictSerializer):
    """Only what is named changes; an empty `secret` keeps the present one."""

    url = StrictText(max_length=500, required=False)
    secret = StrictText(max_length=200, required=False, allow_blank=True)
    entry_point = StrictText(max_length=80, required=False)
    purpose = StrictText(max_length=200, required=False, allow_blank=True)


class Hooks(Endpoint):
    """All hooks."""

    @endpoint(
        operation_id="hooks_list",
        query=PageQuery,
        answer=page_of(HookSerializer),
        summary="List hooks",
    )
    def get(self, request: Request) -> Response:
        """By name."""
        require(self.user, Permission.VIEW_ALL)
        asked = self.query(PageQuery)
        after = asked.get("after")
        if after is not None and NAME.fullmatch(after) is None:
            raise BadCursor
        found = selectors.hooks(after=after or "", limit=asked["limit"] + 1)
        return shown_page(HookSerializer, found, asked["limit"], lambda one: one.name)

    @endpoint(
        operation_id="hooks_add",
        request=HookRequest,
        answer=HookSerializer,
        status=201,
        summary="Add a hook",
    )
    def post(self, request: Request) -> Response:
        """It is asked once a published policy names it."""
        require(self.user, Permission.POLICY_PUBLISH)
        made = add_hook(actor=actor_of(self.user), **self.body(HookRequest))
        return shown(HookSerializer, made, status=201)


class OneHook(Endpoint):
    """One hook."""

    @endpoint(operation_id="hooks_read", answer=HookSerializer, summary="Read a hook")
    def get(self, request: Request, name: str) -> Response:
        """Without its secret."""
        require(self.user, Permission.VIEW_ALL)
        return shown(HookSerializer, selectors.hook(name))

    @endpoint(
        operation_id="hooks_change",
        request=HookChange,
        answer=HookSerializer,
        summary="Change a hook",
    )
    def patch(self, request: Request, name: str) -> Response:
        """Gateways follow within a second."""
        require(self.user, Permission.POLICY_PUBLISH)
        changed = change_hook(name=name, actor=actor_of(self.user), **self.body(HookChange))
        return shown(HookSerializer, changed)

    @endpoint(operation_id="hooks_remove", status=204, summary="Remove a hook")
    def delete(self, request: Request, name: str) -> Response:
        """Refused while a live policy, or a draft, names it."""
        require(self.user, Permission.POLICY_PUBLISH)
        remove_hook(name=name, actor=actor_of(self.user))
        return Response(status=204)
