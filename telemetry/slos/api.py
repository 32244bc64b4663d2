"""REST: objectives and how they are kept."""

from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from console.accounts.selectors import Permission, actor_of, require
from console.rest.fields import (
    OfferedField,
    OutSerializer,
    PageQuery,
    StrictInteger,
    StrictNumber,
    StrictSerializer,
    StrictText,
)
from console.rest.schema import endpoint, page_of
from console.rest.views import Endpoint, key_before, shown, shown_page
from routing.contracts.enums import WorkClass
from telemetry.slos import selectors, services
from telemetry.slos.rules import E2E, TTFT
from telemetry.stats.burn import Judged, budget_left


class ObjectiveSerializer(OutSerializer):
    """One objective. An empty class or model means any."""

    id = serializers.IntegerField()
    work_class = serializers.CharField()
    model = serializers.CharField()
    metric = serializers.CharField()
    threshold_ms = serializers.IntegerField()
    target_ratio = serializers.FloatField()


class WindowSerializer(OutSerializer):
    """Requests judged in the last `minutes` ended minutes."""

    minutes = serializers.IntegerField()
    total = serializers.IntegerField()
    good = serializers.IntegerField()
    good_ratio = serializers.FloatField(allow_null=True)


class ObjectiveStateSerializer(ObjectiveSerializer):
    """An objective with its windows; `alarm` is empty, `ticket` or `page`."""

    alarm = serializers.CharField()
    burn_1h = serializers.FloatField(allow_null=True)
    budget_left_ratio = serializers.FloatField(
        allow_null=True, help_text="Of 30 days; below 0 more was spent than there was"
    )
    windows = WindowSerializer(many=True)


class ObjectiveRequest(StrictSerializer):
    """What to promise."""

    work_class = OfferedField(
        choices=["", *[item.value for item in WorkClass]], required=False, default=""
    )
    model = StrictText(max_length=200, required=False, default="", allow_blank=True)
    metric = OfferedField(choices=[TTFT, E2E])
    threshold_ms = StrictInteger(min_value=1, max_value=600_000)
    target_ratio = StrictNumber(min_value=0.5, max_value=0.9999)
    reason = StrictText(max_length=500, required=False, default="", allow_blank=True)


class Objectives(Endpoint):
    """Objectives."""

    @endpoint(
        operation_id="objectives_list",
        query=PageQuery,
        answer=page_of(ObjectiveSerializer),
        summary="List objectives",
    )
    def get(self, request: Request) -> Response:
        """In order of their number."""
        require(self.user, Permission.VIEW_ALL)
        asked = self.query(PageQuery)
        after = key_before(asked.get("after")) or 0
        found = sorted(
            (one for one in selectors.objectives() if one.id > after), key=lambda one: one.id
        )
        limit = asked["limit"]
        return shown_page(ObjectiveSerializer, found[: limit + 1], limit, lambda one: one.id)

    @endpoint(
        operation_id="objectives_set",
        request=ObjectiveRequest,
        answer=ObjectiveSerializer,
        summary="Set the objective of a class and model",
    )
    def put(self, request: Request) -> Response:
        """Idempotent: one objective for each class and model."""
        require(self.user, Permission.ACT)
        asked = self.body(ObjectiveRequest)
        number = services.set_objective(**asked, actor=actor_of(self.user))
        return shown(ObjectiveSerializer, selectors.objective(number))


class Objective(Endpoint):
    """One objective."""

    @endpoint(
        operation_id="objectives_read",
        answer=ObjectiveStateSerializer,
        summary="Read an objective and how it is kept",
    )
    def get(self, request: Request, objective_id: int) -> Response:
        """With its windows."""
        require(self.user, Permission.VIEW_ALL)
        (state,) = selectors.states([selectors.objective(objective_id)])
        one = state.objective
        value = {
            "id": one.id,
            "work_class": one.work_class,
            "model": one.model,
            "metric": one.metric,
            "threshold_ms": one.threshold_ms,
            "target_ratio": one.target_ratio,
            "alarm": state.alarm.rule.severity if state.alarm else "",
            "burn_1h": state.burn_1h,
            "budget_left_ratio": budget_left(
                selectors.budgets().get(one.id, Judged()), one.target_ratio
            ),
            "windows": [
                {
                    "minutes": minutes,
                    "total": judged.total,
                    "good": judged.good,
                    "good_ratio": judged.good_ratio,
                }
                for minutes, judged in state.windows.items()
            ],
        }
        return shown(ObjectiveStateSerializer, value)

    @endpoint(operation_id="objectives_remove", status=204, summary="Remove an objective")
    def delete(self, request: Request, objective_id: int) -> Response:
        """Promise it no longer."""
        require(self.user, Permission.ACT)
        services.remove_objective(objective_id=objective_id, actor=actor_of(self.user))
        return Response(status=204)
