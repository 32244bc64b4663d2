"""Objectives, and how each minute of traffic kept them."""

from django.db import models

from routing.contracts.enums import WorkClass

METRICS = [("ttft", "TTFT"), ("e2e", "End to end")]


class Objective(models.Model):
    """What requests of a class and model are to keep. An empty class or model means any.

    The most specific objective judges a request, so each is judged once: class and model, then
    model, then class, then the one for all.
    """

    work_class = models.CharField(
        max_length=16, blank=True, choices=[(item.value, item.value) for item in WorkClass]
    )
    model = models.CharField(max_length=200, blank=True)
    metric = models.CharField(max_length=8, choices=METRICS)
    threshold_ms = models.PositiveIntegerField()
    target_ratio = models.FloatField()
    created_at = models.DateTimeField(auto_now_add=True)
    updated_at = models.DateTimeField(auto_now=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["work_class", "model"], name="objective_once"),
            models.CheckConstraint(
                condition=models.Q(target_ratio__gte=0.5) & models.Q(target_ratio__lte=0.9999),
                name="objective_target_is_ratio",
            ),
            models.CheckConstraint(
                condition=models.Q(threshold_ms__gte=1) & models.Q(threshold_ms__lte=600_000),
                name="objective_threshold_sane",
            ),
            models.CheckConstraint(
                condition=models.Q(metric__in=["ttft", "e2e"]), name="objective_metric_known"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.work_class or '*'}/{self.model or '*'} {self.metric} {self.threshold_ms} ms"


class ObjectiveMinute(models.Model):
    """Requests of one minute that an objective judged, by its threshold at that time."""

    objective = models.ForeignKey(Objective, on_delete=models.CASCADE, related_name="minutes")
    minute_at = models.DateTimeField()
    total = models.BigIntegerField()
    good = models.BigIntegerField()

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["objective", "minute_at"], name="objective_minute_once"
            ),
            models.CheckConstraint(
                condition=models.Q(good__gte=0) & models.Q(good__lte=models.F("total")),
                name="objective_minute_good_in_total",
            ),
        ]
        indexes = [models.Index(fields=["minute_at"], name="objective_minute_by_age")]

    def __str__(self) -> str:
        return f"{self.objective_id} {self.minute_at} {self.good}/{self.total}"
