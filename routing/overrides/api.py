"""REST: overrides above the policy. Setting the same one twice sets it once; so does lifting."""

from typing import Any

from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from console.accounts.selectors import Permission, actor_of, require
from console.rest.fields import (
    InstantField,
    OfferedField,
    OutSerializer,
    PageQuery,
    StrictInteger,
    StrictNumber,
    StrictSerializer,
    StrictText,
)
from console.rest.schema import endpoint, page_of
from console.rest.views import Endpoint, key_before, shown, shown_rows
from routing.contracts.enums import WorkClass
from routing.contracts.override import OverrideKind
from routing.overrides import selectors
from routing.overrides.rules import DEFAULT_HOLD_S, Wanted
from routing.overrides.services import apply_override, lift_override


class OverrideSerializer(OutSerializer):
    """An override. `amount` counts tokens or requests; `state` is `active`, `lifted` or `ended`."""

    id = serializers.IntegerField()
    kind = serializers.CharField()
    words = serializers.CharField()
    tenant = serializers.CharField()
    work_class = serializers.CharField()
    model = serializers.CharField()
    amount = serializers.IntegerField(allow_null=True)
    admitted_ratio = serializers.FloatField(allow_null=True)
    reason = serializers.CharField()
    source = serializers.CharField()  # type: ignore[assignment]  # `source` is also a field option
    run_id = serializers.IntegerField(allow_null=True)
    author = serializers.CharField()
    created_at = InstantField()
    ends_at = InstantField()
    lifted_at = InstantField(allow_null=True)
    lifted_by = serializers.CharField()
    state = serializers.CharField()


class LiftedSerializer(OverrideSerializer):
    """The override after the act; `changed` is false when it had ended before."""

    changed = serializers.BooleanField()


class OverridesQuery(PageQuery):
    """Paging, and whether only those in force are wanted."""

    active = serializers.BooleanField(required=False, default=False)


class OverrideRequest(StrictSerializer):
    """What to set, for how long, and why: `reason` is told to the callers that it touches."""

    kind = OfferedField(choices=[kind.value for kind in OverrideKind])
    tenant = StrictText(max_length=63, required=False, default="", allow_blank=True)
    work_class = OfferedField(
        choices=[item.value for item in WorkClass], required=False, allow_null=True, default=None
    )
    model = StrictText(max_length=200, required=False, default="", allow_blank=True)
    amount = StrictInteger(required=False, default=0, min_value=0)
    admitted_ratio = StrictNumber(
        required=False, allow_null=True, default=None, min_value=0, max_value=1
    )
    hold_s = StrictInteger(required=False, default=DEFAULT_HOLD_S)
    reason = StrictText(max_length=300)


class LiftQuery(StrictSerializer):
    """Why it is lifted."""

    reason = serializers.CharField(required=False, default="", max_length=300)


class Overrides(Endpoint):
    """All overrides."""

    @endpoint(
        operation_id="overrides_list",
        query=OverridesQuery,
        answer=page_of(OverrideSerializer),
        summary="List overrides",
    )
    def get(self, request: Request) -> Response:
        """Newest first."""
        require(self.user, Permission.VIEW_ALL)
        asked = self.query(OverridesQuery)
        page = selectors.overrides(
            only_active=asked["active"],
            before_id=key_before(asked.get("after")),
            limit=asked["limit"],
        )
        return shown_rows(OverrideSerializer, page.rows, page.next_after)

    @endpoint(
        operation_id="overrides_set",
        request=OverrideRequest,
        answer=OverrideSerializer,
        status=201,
        summary="Set an override",
    )
    def post(self, request: Request) -> Response:
        """Set it; the same one again, while it is in force, is answered as it stands."""
        require(self.user, Permission.ACT)
        asked = self.body(OverrideRequest)
        made = apply_override(
            wanted=_wanted(asked),
            hold_s=asked["hold_s"],
            reason=asked["reason"],
            actor=actor_of(self.user),
        )
        return shown(OverrideSerializer, made, status=201)


class OneOverride(Endpoint):
    """One override."""

    @endpoint(operation_id="overrides_read", answer=OverrideSerializer, summary="Read an override")
    def get(self, request: Request, override_id: int) -> Response:
        """Also after its end."""
        require(self.user, Permission.VIEW_ALL)
        return shown(OverrideSerializer, selectors.override(override_id))

    @endpoint(
        operation_id="overrides_lift",
        query=LiftQuery,
        answer=LiftedSerializer,
        summary="Lift an override",
    )
    def delete(self, request: Request, override_id: int) -> Response:
        """End it now; one that has ended stays as it is."""
        require(self.user, Permission.ACT)
        reason = self.query(LiftQuery)["reason"]
        view, changed = lift_override(
            override_id=override_id, actor=actor_of(self.user), reason=reason
        )
        return Response({**OverrideSerializer(view).data, "changed": changed})


def _wanted(asked: dict[str, Any]) -> Wanted:
    return Wanted(
        kind=OverrideKind(asked["kind"]),
        tenant=asked["tenant"],
        work_class=WorkClass(asked["work_class"]) if asked["work_class"] else None,
        model=asked["model"],
        amount=asked["amount"],
        admitted_ratio=asked["admitted_ratio"],
    )
