"""REST: do holds, counters and ledger agree, and have what differs repaired."""

from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from console.accounts.selectors import Permission, actor_of, require
from console.rest.fields import (
    InstantField,
    OutSerializer,
    StrictFlag,
    StrictSerializer,
    StrictText,
)
from console.rest.schema import endpoint
from console.rest.views import Endpoint, shown
from tenants.reconcile import selectors, services


class LineSerializer(OutSerializer):
    """One check: how many differ and by how much in all; `samples` names the first."""

    check = serializers.CharField()
    bound = serializers.CharField()
    count = serializers.IntegerField()
    amount = serializers.IntegerField()
    samples = serializers.ListField(child=serializers.CharField())


class ActSerializer(OutSerializer):
    """One repair; `is_done` false says why it could not be made."""

    check = serializers.CharField()
    what = serializers.CharField()
    is_done = serializers.BooleanField()


class ReconciliationSerializer(OutSerializer):
    """One run. `count` is what is wrong after it; `trouble` why not all was looked at."""

    id = serializers.IntegerField()
    at = InstantField()
    took_ms = serializers.IntegerField()
    is_repair = serializers.BooleanField()
    by = serializers.CharField()
    count = serializers.IntegerField()
    is_clean = serializers.BooleanField()
    trouble = serializers.CharField()
    lines = LineSerializer(many=True)
    acts = ActSerializer(many=True)


class LatestSerializer(OutSerializer):
    """The last run, null before the first."""

    latest = ReconciliationSerializer(allow_null=True)


class ReconcileRequest(StrictSerializer):
    """`repair` false only looks."""

    repair = StrictFlag(required=False, default=False)
    reason = StrictText(max_length=500, required=False, default="", allow_blank=True)


class AskedSerializer(OutSerializer):
    """The job that does it."""

    job_id = serializers.IntegerField()


class Reconciliation(Endpoint):
    """Holds, counters and ledger against each other."""

    @endpoint(
        operation_id="reconciliation_read",
        answer=LatestSerializer,
        summary="Read the last reconciliation",
    )
    def get(self, request: Request) -> Response:
        """The last run, whoever asked for it."""
        require(self.user, Permission.VIEW_ALL)
        return shown(LatestSerializer, {"latest": selectors.latest()})

    @endpoint(
        operation_id="reconciliation_ask",
        request=ReconcileRequest,
        answer=AskedSerializer,
        status=202,
        summary="Reconcile now, with or without repair",
    )
    def post(self, request: Request) -> Response:
        """Queue a run; its result is the last reconciliation when the job has ended."""
        require(self.user, Permission.ADJUST_USAGE)
        asked = self.body(ReconcileRequest)
        job_id = services.ask(
            is_repair=asked["repair"], actor=actor_of(self.user), reason=asked["reason"]
        )
        return shown(AskedSerializer, {"job_id": job_id}, status=202)
