"""REST: demand forecasts with their error and coverage, and the replicas that they take."""

from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from capacity.forecasts import selectors, services
from capacity.models.forecast import MEASURES
from console.accounts.selectors import Permission, actor_of, require
from console.rest.fields import InstantField, OfferedField, OutSerializer, PageQuery
from console.rest.schema import endpoint, page_of
from console.rest.views import Endpoint, shown, shown_rows


class BandPointSerializer(OutSerializer):
    """One hour: sums that it is expected to lie below 1 time in 20, 10, and 19 in 20."""

    hour_at = InstantField(help_text="When the hour begins")
    p5 = serializers.IntegerField()
    p50 = serializers.IntegerField()
    p95 = serializers.IntegerField()


class ScoreSerializer(OutSerializer):
    """How a method did on the past. `loss_ratio` chose the method: least first."""

    method = serializers.CharField()
    error_ratio = serializers.FloatField(allow_null=True)
    coverage_ratio = serializers.FloatField()
    loss_ratio = serializers.FloatField(allow_null=True)


class ForecastSerializer(OutSerializer):
    """A band of one measure. With `short_h` above 0 there is none: so many hours are missing."""

    id = serializers.IntegerField()
    source = serializers.CharField(  # type: ignore[assignment] # the base has an argument so named
        help_text="`ledger`, `prometheus`, or an import's name"
    )
    tenant = serializers.CharField(help_text="Empty: all tenants together")
    model = serializers.CharField()
    measure = OfferedField(choices=MEASURES)
    horizon_h = serializers.IntegerField()
    as_of = InstantField(help_text="End of the history that it was made from")
    history_h = serializers.IntegerField()
    short_h = serializers.IntegerField()
    method = serializers.CharField()
    error_ratio = serializers.FloatField(
        allow_null=True, help_text="Sum of absolute errors over sum of what came, backtest"
    )
    coverage_ratio = serializers.FloatField(
        allow_null=True, help_text="Share of hours inside the band, backtest; 0.9 is meant"
    )
    windows = serializers.IntegerField(help_text="Past moments that it was tried from")
    note = serializers.CharField()
    is_latest = serializers.BooleanField()
    points = BandPointSerializer(many=True)
    scores = ScoreSerializer(many=True)


class ForecastQuery(PageQuery):
    """Filters of the list."""

    source = serializers.CharField(  # type: ignore[assignment] # as above
        required=False, default="", max_length=40
    )
    tenant = serializers.CharField(required=False, default="", max_length=64)
    model = serializers.CharField(required=False, default="", max_length=200)
    measure = OfferedField(choices=MEASURES, required=False, default="")
    horizon_h = serializers.IntegerField(
        required=False, default=0, help_text="1 or 24; default: both"
    )


class ForecastRunSerializer(OutSerializer):
    """A run over every series."""

    id = serializers.IntegerField()
    as_of = InstantField()
    started_at = InstantField()
    finished_at = InstantField(allow_null=True)
    done = serializers.IntegerField()
    total = serializers.IntegerField()
    left_out = serializers.IntegerField(help_text="Series beyond the bound of a run")
    has_models = serializers.BooleanField(help_text="Whether statsforecast was installed")
    trouble = serializers.CharField()


class PoolPlanSerializer(OutSerializer):
    """Replicas of a pool's kind that its model takes. Null: no number; `trouble` says why."""

    pool = serializers.CharField()
    model = serializers.CharField()
    profile = serializers.CharField()
    basis = serializers.CharField(help_text="Where the demand is taken from")
    rate_rps = serializers.FloatField(allow_null=True)
    input_tokens_per_s = serializers.FloatField(allow_null=True)
    output_tokens_per_s = serializers.FloatField(allow_null=True)
    itl_target_s = serializers.FloatField(allow_null=True)
    domains = serializers.IntegerField()
    ready_replicas = serializers.IntegerField()
    need_now = serializers.IntegerField(allow_null=True)
    need_domain_lost = serializers.IntegerField(allow_null=True)
    need_quarter_lost = serializers.IntegerField(allow_null=True)
    need = serializers.IntegerField(allow_null=True, help_text="The largest of the three")
    set_by = serializers.CharField()
    binds = serializers.CharField(help_text="`compute`, `kv` or `latency`")
    short_by = serializers.IntegerField()
    trouble = serializers.CharField()


class CapacityPlanSerializer(OutSerializer):
    """The newest finished run and what it says of every pool."""

    run = ForecastRunSerializer(allow_null=True)
    pools = PoolPlanSerializer(many=True)


class AskedRunSerializer(OutSerializer):
    """The job that does it."""

    job_id = serializers.IntegerField()


class Forecasts(Endpoint):
    """The latest forecast of every series."""

    @endpoint(
        operation_id="forecasts_list",
        query=ForecastQuery,
        answer=page_of(ForecastSerializer),
        summary="List demand forecasts",
    )
    def get(self, request: Request) -> Response:
        """Newest first."""
        require(self.user, Permission.VIEW_ALL)
        asked = self.query(ForecastQuery)
        after, limit = asked.pop("after", None), asked.pop("limit")
        page = selectors.forecast_page(selectors.Wanted(**asked), after=after, limit=limit)
        return shown_rows(ForecastSerializer, page.rows, page.next_after)


class OneForecast(Endpoint):
    """One forecast."""

    @endpoint(
        operation_id="forecasts_read", answer=ForecastSerializer, summary="Read a demand forecast"
    )
    def get(self, request: Request, forecast_id: int) -> Response:
        """Its band and the scores of every method."""
        require(self.user, Permission.VIEW_ALL)
        return shown(ForecastSerializer, selectors.forecast(forecast_id))


class ForecastRuns(Endpoint):
    """Ask for a run."""

    @endpoint(
        operation_id="forecast_runs_ask",
        answer=AskedRunSerializer,
        status=202,
        summary="Forecast now instead of at the next hour",
    )
    def post(self, request: Request) -> Response:
        """Queue it; asked twice, it is queued once."""
        require(self.user, Permission.ACT)
        job_id = services.ask_run(actor=actor_of(self.user))
        return shown(AskedRunSerializer, {"job_id": job_id}, status=202)


class CapacityPlan(Endpoint):
    """Replicas that demand takes."""

    @endpoint(
        operation_id="capacity_plan_read",
        answer=CapacityPlanSerializer,
        summary="Replicas needed now, with a domain lost, and with a quarter lost",
    )
    def get(self, request: Request) -> Response:
        """Of every pool, as the newest finished run saw it."""
        require(self.user, Permission.VIEW_ALL)
        run, pools = selectors.plans()
        return shown(CapacityPlanSerializer, {"run": run, "pools": pools})
