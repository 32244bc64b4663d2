"""What a hosted provider lets us in with."""

from django.db import models

from capacity.models.fleet import Pool


class ProviderKey(models.Model):
    """The API key of a pool's provider: sealed, never shown again.

    `hint` is its last characters, so that people can tell which it is.
    """

    pool = models.OneToOneField(Pool, on_delete=models.PROTECT, related_name="provider_key")
    sealed = models.BinaryField()
    hint = models.CharField(max_length=8)
    set_at = models.DateTimeField()

    def __str__(self) -> str:
        return f"{self.pool_id} …{self.hint}"
