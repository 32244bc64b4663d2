"""Demand that was seen elsewhere, forecasts of demand, and the replicas that it takes."""

from django.db import models

REQUESTS, INPUT_TOKENS, OUTPUT_TOKENS = "requests", "input_tokens", "output_tokens"
MEASURES = (REQUESTS, INPUT_TOKENS, OUTPUT_TOKENS)


class DemandHour(models.Model):
    """One hour of imported demand: sums of a tenant and model. `tenant` is empty for all of them.

    Traffic of this installation is not copied here: it is the ledger's hourly rollups.
    """

    source = models.SlugField(max_length=40)
    tenant = models.CharField(max_length=64, blank=True)
    model = models.CharField(max_length=200)
    hour_at = models.DateTimeField()
    requests = models.BigIntegerField()
    input_tokens = models.BigIntegerField()
    output_tokens = models.BigIntegerField()

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["source", "tenant", "model", "hour_at"], name="demand_hour_once"
            ),
            models.CheckConstraint(
                condition=models.Q(requests__gte=0)
                & models.Q(input_tokens__gte=0)
                & models.Q(output_tokens__gte=0),
                name="demand_hour_not_negative",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.source} {self.tenant} {self.model} {self.hour_at}"


class ForecastRun(models.Model):
    """One run over every series. `series` is its list, `done` how many of them are written.

    A worker that takes over goes on behind them. `as_of` is the end of the history that it used.
    """

    as_of = models.DateTimeField()
    started_at = models.DateTimeField()
    finished_at = models.DateTimeField(null=True, blank=True)
    series = models.JSONField(default=list)
    done = models.PositiveIntegerField(default=0)
    left_out = models.PositiveIntegerField(default=0)
    has_models = models.BooleanField(default=False)
    trouble = models.CharField(max_length=400, blank=True)

    class Meta:
        indexes = [models.Index(fields=["-as_of", "-id"], name="forecast_run_by_time")]

    def __str__(self) -> str:
        return f"forecast run {self.pk} as of {self.as_of}"


class Forecast(models.Model):
    """A band of one measure of one series for the hours `[as_of, as_of + horizon_h)`.

    `points` holds `[p5, p50, p95]` for each hour, sums of the hour. Without enough history there
    are none, and `short_h` says how many more hours it takes. `error_ratio` (sum of absolute
    errors over sum of what came) and `coverage_ratio` (share inside the band) come from `windows`
    rolling forecasts of the past; `scores` holds both and the loss of every method tried.
    """

    run = models.ForeignKey(ForecastRun, on_delete=models.CASCADE, related_name="forecasts")
    source = models.SlugField(max_length=40)
    tenant_id = models.BigIntegerField(null=True, blank=True)
    tenant = models.CharField(max_length=64, blank=True)
    model = models.CharField(max_length=200)
    measure = models.CharField(max_length=16, choices=[(name, name) for name in MEASURES])
    horizon_h = models.PositiveSmallIntegerField()
    as_of = models.DateTimeField()
    history_h = models.PositiveIntegerField()
    short_h = models.PositiveIntegerField(default=0)
    method = models.CharField(max_length=32, blank=True)
    points = models.JSONField(default=list)
    error_ratio = models.FloatField(null=True, blank=True)
    coverage_ratio = models.FloatField(null=True, blank=True)
    windows = models.PositiveIntegerField(default=0)
    scores = models.JSONField(default=list)
    note = models.CharField(max_length=200, blank=True)
    is_latest = models.BooleanField(default=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["source", "tenant", "model", "measure", "horizon_h", "as_of"],
                name="forecast_once",
            ),
            models.UniqueConstraint(
                fields=["source", "tenant", "model", "measure", "horizon_h"],
                condition=models.Q(is_latest=True),
                name="forecast_one_latest",
            ),
            models.CheckConstraint(
                condition=models.Q(measure__in=MEASURES), name="forecast_measure_known"
            ),
        ]
        indexes = [
            models.Index(
                fields=["-id"], condition=models.Q(is_latest=True), name="forecast_latest"
            ),
            models.Index(fields=["as_of"], name="forecast_by_time"),
        ]

    def __str__(self) -> str:
        return f"{self.source} {self.tenant} {self.model} {self.measure} {self.horizon_h} h"


class PoolPlan(models.Model):
    """Replicas of a pool's kind that its model's demand takes, as one run saw it.

    Null in a `need_*` column: no number is enough (`binds` says why), or the loss leaves nothing.
    `trouble` says why there is no plan at all; then every figure is null.
    """

    run = models.ForeignKey(ForecastRun, on_delete=models.CASCADE, related_name="plans")
    pool = models.CharField(max_length=120)
    model = models.CharField(max_length=200)
    profile = models.CharField(max_length=120, blank=True)
    basis = models.CharField(max_length=32, blank=True)
    rate_rps = models.FloatField(null=True, blank=True)
    input_tokens_per_s = models.FloatField(null=True, blank=True)
    output_tokens_per_s = models.FloatField(null=True, blank=True)
    itl_target_s = models.FloatField(null=True, blank=True)
    domains = models.PositiveIntegerField(default=0)
    ready_replicas = models.PositiveIntegerField(default=0)
    need_now = models.PositiveIntegerField(null=True, blank=True)
    need_domain_lost = models.PositiveIntegerField(null=True, blank=True)
    need_quarter_lost = models.PositiveIntegerField(null=True, blank=True)
    set_by = models.CharField(max_length=32, blank=True)
    binds = models.CharField(max_length=16, blank=True)
    trouble = models.CharField(max_length=200, blank=True)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["run", "pool"], name="pool_plan_once")]

    def __str__(self) -> str:
        return f"{self.pool}: {self.need_now} replicas"
