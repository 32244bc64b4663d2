"""What each reconciliation of counters, holds and ledger found, and what it repaired."""

from django.db import models


class Reconciliation(models.Model):
    """One run. `lines` are its checks, `acts` its repairs, as the rules of `reconcile` write them.

    `count` sums what was found after any repair; `trouble` says why a run could not look.
    """

    at = models.DateTimeField()
    took_ms = models.IntegerField()
    is_repair = models.BooleanField()
    by = models.CharField(max_length=150)
    count = models.BigIntegerField()
    lines = models.JSONField()
    acts = models.JSONField()
    trouble = models.CharField(max_length=300, blank=True)

    def __str__(self) -> str:
        return f"{self.at} {self.count}"
