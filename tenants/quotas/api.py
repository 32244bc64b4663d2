"""REST: limits in use, where they stand, and changing them.

Counts are integers (`amount`), money is decimal text (`amount_usd`): a limit has exactly one.
"""

from typing import Any

from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from console.accounts.selectors import Caller, Permission, actor_of, require
from console.errors import InvalidInput
from console.rest.fields import (
    InstantField,
    OfferedField,
    OutSerializer,
    StrictInteger,
    StrictSerializer,
    StrictText,
    UsdField,
)
from console.rest.schema import endpoint
from console.rest.views import Endpoint
from routing.contracts.enums import Dimension, LimitScope, WindowKind, WorkClass
from tenants.directory.access import open_tenant
from tenants.quotas import selectors, services
from tenants.quotas.rules import OWN_SCOPES

_SCOPES = [item.value for item in LimitScope]
_DIMENSIONS = [item.value for item in Dimension]
_WINDOWS = [item.value for item in WindowKind]
_CLASSES = [item.value for item in WorkClass]


class BudgetSerializer(OutSerializer):
    """A limit on spend and where it stands; null is unknown (the store is away), never 0."""

    name = serializers.CharField(source="limit.name")
    scope = serializers.CharField(source="limit.scope")
    key_id = serializers.IntegerField(source="limit.key_id", allow_null=True)
    model = serializers.CharField(source="limit.model", allow_null=True)
    work_class = serializers.CharField(source="limit.work_class")
    resource = serializers.CharField(source="limit.resource")
    window = serializers.CharField(source="limit.window")
    anchor_day = serializers.IntegerField(source="limit.anchor_day", allow_null=True)
    anchor_time = serializers.CharField(source="limit.anchor_time", allow_null=True)
    window_start = InstantField(allow_null=True)
    window_end = InstantField(allow_null=True)
    limit_usd = UsdField(source="limit.amount")
    spent_usd = UsdField(source="used", allow_null=True)
    held_usd = UsdField(source="held", allow_null=True)
    remaining_usd = UsdField(source="remaining", allow_null=True)


class LimitSerializer(OutSerializer):
    """A limit and where it stands; null is unknown, never 0. Spend is under `budgets`."""

    name = serializers.CharField(source="limit.name")
    scope = serializers.CharField(source="limit.scope")
    dimension = serializers.CharField(source="limit.dimension")
    window = serializers.CharField(source="limit.window")
    anchor_day = serializers.IntegerField(source="limit.anchor_day", allow_null=True)
    anchor_time = serializers.CharField(source="limit.anchor_time", allow_null=True)
    key_id = serializers.IntegerField(source="limit.key_id", allow_null=True)
    model = serializers.CharField(source="limit.model", allow_null=True)
    work_class = serializers.CharField(source="limit.work_class")
    resource = serializers.CharField(source="limit.resource")
    amount = serializers.SerializerMethodField()
    amount_usd = serializers.SerializerMethodField()
    used = serializers.SerializerMethodField()
    held = serializers.SerializerMethodField()
    remaining = serializers.SerializerMethodField()
    window_start = InstantField(allow_null=True)
    window_end = InstantField(allow_null=True)

    def get_amount(self, row: selectors.LimitPosition) -> int | None:
        """The bound, of everything but spend."""
        return None if _is_spend(row) else row.limit.amount

    def get_amount_usd(self, row: selectors.LimitPosition) -> str | None:
        """The bound of spend."""
        return UsdField().to_representation(row.limit.amount) if _is_spend(row) else None

    def get_used(self, row: selectors.LimitPosition) -> int | None:
        """What was used in the window, of everything but spend."""
        return None if _is_spend(row) else row.used

    def get_held(self, row: selectors.LimitPosition) -> int | None:
        """What running requests hold, of everything but spend."""
        return None if _is_spend(row) else row.held

    def get_remaining(self, row: selectors.LimitPosition) -> int | None:
        """What is left, of everything but spend."""
        return None if _is_spend(row) else row.remaining


DIMENSIONS_SAID = (
    "`req` requests, `in` input tokens, `out` output tokens, `usd` spend, `conc` requests at once,"
    " `kv` KV tokens at once."
)
WINDOWS_SAID = "`m` minute, `d` day, `w` week, `mo` month; `g` at this moment, for `conc` and `kv`."


class LimitName(StrictSerializer):
    """Which limit: a scope with its subject, a dimension and a window."""

    scope = OfferedField(choices=_SCOPES)
    dimension = OfferedField(choices=_DIMENSIONS, help_text=DIMENSIONS_SAID)
    window = OfferedField(choices=_WINDOWS, help_text=WINDOWS_SAID)
    key_id = StrictInteger(required=False, min_value=1)
    model = StrictText(required=False, max_length=200)
    work_class = OfferedField(required=False, choices=_CLASSES)
    resource = StrictText(required=False, max_length=100)


class LimitRequest(LimitName):
    """A limit to set. Its window is the calendar's, or begins at an anchor in the tenant's zone."""

    anchor_day = StrictInteger(
        required=False,
        min_value=1,
        max_value=31,
        help_text="Of a month (a shorter one begins on its last day), or 1 Monday to 7 Sunday.",
    )
    anchor_time = StrictText(
        required=False, max_length=5, help_text="Local time as HH:MM; 00:00 if there is a day."
    )
    amount = StrictInteger(required=False, min_value=0)
    amount_usd = UsdField(required=False)


class LimitRemoval(StrictSerializer):
    """Which limit to remove, as query parameters."""

    scope = OfferedField(choices=_SCOPES)
    dimension = OfferedField(choices=_DIMENSIONS, help_text=DIMENSIONS_SAID)
    window = OfferedField(choices=_WINDOWS, help_text=WINDOWS_SAID)
    key_id = serializers.IntegerField(required=False, min_value=1)
    model = serializers.CharField(required=False, max_length=200)
    work_class = OfferedField(required=False, choices=_CLASSES)
    resource = serializers.CharField(required=False, max_length=100)


class Budgets(Endpoint):
    """A tenant's budgets."""

    @endpoint(
        operation_id="budgets_list",
        answer=BudgetSerializer(many=True),
        summary="Limits on spend: limit, spent, held, remaining, window",
    )
    def get(self, request: Request, slug: str) -> Response:
        """Every limit on spend, with its position now."""
        found = open_tenant(self.user, slug)
        rows = [row for row in selectors.positions(found.id) if _is_spend(row)]
        return Response(BudgetSerializer(rows, many=True).data)


class Limits(Endpoint):
    """A tenant's limits."""

    @endpoint(
        operation_id="limits_list",
        answer=LimitSerializer(many=True),
        summary="Limits in use",
    )
    def get(self, request: Request, slug: str) -> Response:
        """Every limit, with its position now."""
        found = open_tenant(self.user, slug)
        return Response(LimitSerializer(selectors.positions(found.id), many=True).data)

    @endpoint(
        operation_id="limits_set",
        request=LimitRequest,
        answer=LimitSerializer(many=True),
        summary="Set a limit",
    )
    def put(self, request: Request, slug: str) -> Response:
        """Set it; what was used stays. Answers with all limits."""
        found = open_tenant(self.user, slug)
        asked = self.body(LimitRequest)
        _require(self.user, asked["scope"], found.id)
        amount = _amount(asked)
        services.set_limit(tenant_id=found.id, amount=amount, actor=actor_of(self.user), **asked)
        return Response(LimitSerializer(selectors.positions(found.id), many=True).data)

    @endpoint(
        operation_id="limits_remove",
        query=LimitRemoval,
        status=204,
        summary="Remove a limit",
    )
    def delete(self, request: Request, slug: str) -> Response:
        """Remove it; removing what is not there changes nothing."""
        found = open_tenant(self.user, slug)
        asked = self.query(LimitRemoval)
        _require(self.user, asked["scope"], found.id)
        services.set_limit(tenant_id=found.id, amount=None, actor=actor_of(self.user), **asked)
        return Response(status=204)


def _require(user: Caller, scope: str, tenant_id: int) -> None:
    if scope in OWN_SCOPES:
        require(user, Permission.TENANT_MANAGE_LIMITS, tenant_id)
    else:
        require(user, Permission.QUOTA_GRANT, tenant_id)


def _amount(asked: dict[str, Any]) -> int:
    """Take the amount out of a request. Raises `InvalidInput` unless the fitting one is there."""
    amount, amount_usd = asked.pop("amount", None), asked.pop("amount_usd", None)
    is_spend = asked["dimension"] == Dimension.SPEND_NANOUSD.value
    wanted, other = (amount_usd, amount) if is_spend else (amount, amount_usd)
    if wanted is None or other is not None:
        field = "amount_usd" if is_spend else "amount"
        raise InvalidInput(
            f"This limit takes {field}, and only that.",
            field=field,
            hint="Spend is decimal text in US dollars; everything else is a whole number.",
        )
    return int(wanted)


def _is_spend(row: selectors.LimitPosition) -> bool:
    return row.limit.dimension is Dimension.SPEND_NANOUSD
