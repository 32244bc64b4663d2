"""Evaluations: who found which model good enough to stand in for which other one."""

from django.conf import settings
from django.db import models


class Evaluation(models.Model):
    """One record. Policies name it as `ev-<id>`; it counts until it is withdrawn.

    `score_ratio` is the share (0..1) of cases in which `stands_in` did as well as `model`, `note`
    says which cases and by what measure.
    """

    model = models.CharField(max_length=200)
    stands_in = models.CharField(max_length=200)
    score_ratio = models.FloatField()
    note = models.CharField(max_length=400)
    author = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, blank=True, on_delete=models.PROTECT, related_name="+"
    )
    author_label = models.CharField(max_length=150)
    created_at = models.DateTimeField()
    withdrawn_at = models.DateTimeField(null=True, blank=True)
    withdrawn_by = models.CharField(max_length=150, blank=True)

    class Meta:
        constraints = [
            models.CheckConstraint(
                condition=models.Q(score_ratio__gte=0) & models.Q(score_ratio__lte=1),
                name="evaluation_score_is_a_ratio",
            ),
            models.CheckConstraint(
                condition=~models.Q(model=models.F("stands_in")), name="evaluation_of_two_models"
            ),
        ]
        indexes = [
            models.Index(
                fields=["id"], condition=models.Q(withdrawn_at=None), name="evaluation_standing"
            ),
        ]

    def __str__(self) -> str:
        return f"ev-{self.pk}"
