"""REST: the overview, figure by figure as the page defines them (`console.pages.figures`)."""

from django.utils import timezone
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from console.accounts.selectors import Permission, require
from console.pages.standing import Standing, standing
from console.rest.fields import OutSerializer, UsdField
from console.rest.schema import endpoint
from console.rest.views import Endpoint, shown


class AttentionSerializer(OutSerializer):
    """What needs a person: `bad` before `warn` before `stale`."""

    tone = serializers.CharField()
    kind = serializers.CharField(source="word")
    part = serializers.CharField()
    text = serializers.CharField()
    url = serializers.CharField()


class ClassFiguresSerializer(OutSerializer):
    """A model and work class over the last 15 minutes; null without an objective or a sample."""

    model = serializers.CharField()
    work_class = serializers.CharField()
    requests = serializers.IntegerField()
    ttft_p95_ms = serializers.FloatField(allow_null=True)
    good_ratio = serializers.FloatField(source="judged.good_ratio", default=None, allow_null=True)


class OverviewSerializer(OutSerializer):
    """Figures as of now; null is unknown, `age_s` how old the live ones are."""

    attention = AttentionSerializer(source="strips", many=True)
    age_s = serializers.FloatField(source="headline.age_s", allow_null=True)
    goodput_ratio = serializers.FloatField(source="headline.goodput_ratio", allow_null=True)
    ttft_p95_ms = serializers.FloatField(source="headline.ttft_p95_ms", allow_null=True)
    queue_age_s = serializers.FloatField(source="headline.queue_age_s", allow_null=True)
    waiting = serializers.IntegerField(source="headline.waiting", allow_null=True)
    kv_max_ratio = serializers.FloatField(source="headline.kv_max_ratio", allow_null=True)
    refused_per_min = serializers.SerializerMethodField()
    spend_usd_per_hour = UsdField(source="headline.spend_hour_nanousd", allow_null=True)
    tasks_succeeded = serializers.IntegerField(source="outcomes.succeeded")
    tasks_failed = serializers.IntegerField(source="outcomes.failed")
    cost_per_success_usd = UsdField(source="outcomes.success_nanousd", allow_null=True)
    gpu_s_per_task = serializers.FloatField(source="economics.task_gpu_s", allow_null=True)
    g_co2e_per_task = serializers.FloatField(source="economics.task_g", allow_null=True)
    classes = ClassFiguresSerializer(source="headline.classes", many=True)

    def get_refused_per_min(self, found: Standing) -> dict[str, float] | None:
        """By reason, over the last five whole minutes."""
        refusals = found.headline.refusals
        return None if refusals is None else dict(refusals.reasons)


class Overview(Endpoint):
    """The first page as values."""

    @endpoint(operation_id="overview_read", answer=OverviewSerializer, summary="Read the overview")
    def get(self, request: Request) -> Response:
        """Attention, worst first; live figures; tasks of the last 24 hours."""
        require(self.user, Permission.VIEW_ALL)
        return shown(OverviewSerializer, standing(timezone.now()))
