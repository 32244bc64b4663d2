"""Answers of writes that came with an `Idempotency-Key`, kept so that a repeat is not a new act."""

from django.conf import settings
from django.db import models


class KeptAnswer(models.Model):
    """One call that was carried out.

    `key_digest` and `call_digest` are keyed digests of the caller's key and of what was asked;
    `sealed` is the answer, encrypted under the key that only the caller holds.
    """

    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="+")
    key_digest = models.CharField(max_length=64)
    call_digest = models.CharField(max_length=64)
    sealed = models.BinaryField(default=bytes)
    created_at = models.DateTimeField()

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["user", "key_digest"], name="answer_once_per_key"),
        ]
        indexes = [models.Index(fields=["created_at"], name="answer_by_age")]

    def __str__(self) -> str:
        return f"answer #{self.pk}"
