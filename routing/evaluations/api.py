"""REST: evaluations, which fallbacks of a policy must name."""

from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from console.accounts.selectors import Permission, actor_of, require
from console.rest.fields import (
    InstantField,
    OutSerializer,
    PageQuery,
    StrictNumber,
    StrictSerializer,
    StrictText,
)
from console.rest.schema import endpoint, page_of
from console.rest.views import Endpoint, key_before, shown, shown_rows
from routing.evaluations import selectors
from routing.evaluations.services import record_evaluation, withdraw_evaluation


class EvaluationSerializer(OutSerializer):
    """An evaluation. A policy names it by `name`; `state` is `active` or `withdrawn`."""

    id = serializers.IntegerField()
    name = serializers.CharField()
    model = serializers.CharField()
    stands_in = serializers.CharField()
    score_ratio = serializers.FloatField()
    note = serializers.CharField()
    author = serializers.CharField()
    created_at = InstantField()
    withdrawn_at = InstantField(allow_null=True)
    withdrawn_by = serializers.CharField()
    state = serializers.CharField()


class WithdrawnSerializer(EvaluationSerializer):
    """The evaluation after the act; `changed` is false when it was withdrawn before."""

    changed = serializers.BooleanField()


class EvaluationRequest(StrictSerializer):
    """How well `stands_in` does in place of `model`: a share (0 to 1) of which cases."""

    model = StrictText(max_length=200)
    stands_in = StrictText(max_length=200)
    score_ratio = StrictNumber(min_value=0, max_value=1)
    note = StrictText(max_length=400)


class Evaluations(Endpoint):
    """All evaluations."""

    @endpoint(
        operation_id="evaluations_list",
        query=PageQuery,
        answer=page_of(EvaluationSerializer),
        summary="List evaluations",
    )
    def get(self, request: Request) -> Response:
        """Newest first, withdrawn ones too."""
        require(self.user, Permission.VIEW_ALL)
        asked = self.query(PageQuery)
        page = selectors.evaluations(before_id=key_before(asked.get("after")), limit=asked["limit"])
        return shown_rows(EvaluationSerializer, page.rows, page.next_after)

    @endpoint(
        operation_id="evaluations_record",
        request=EvaluationRequest,
        answer=EvaluationSerializer,
        status=201,
        summary="Record an evaluation",
    )
    def post(self, request: Request) -> Response:
        """Record it. A later one of the same pair stands beside it."""
        require(self.user, Permission.POLICY_PUBLISH)
        made = record_evaluation(**self.body(EvaluationRequest), actor=actor_of(self.user))
        return shown(EvaluationSerializer, made, status=201)


class OneEvaluation(Endpoint):
    """One evaluation."""

    @endpoint(
        operation_id="evaluations_read", answer=EvaluationSerializer, summary="Read an evaluation"
    )
    def get(self, request: Request, evaluation_id: int) -> Response:
        """Also after it was withdrawn."""
        require(self.user, Permission.VIEW_ALL)
        return shown(EvaluationSerializer, selectors.evaluation(evaluation_id))

    @endpoint(
        operation_id="evaluations_withdraw",
        answer=WithdrawnSerializer,
        summary="Withdraw an evaluation",
    )
    def delete(self, request: Request, evaluation_id: int) -> Response:
        """It counts no more, and fallbacks that name it end; withdrawn twice is once."""
        require(self.user, Permission.POLICY_PUBLISH)
        view, changed = withdraw_evaluation(evaluation_id=evaluation_id, actor=actor_of(self.user))
        return Response({**EvaluationSerializer(view).data, "changed": changed})
