"""Safety hooks: what asks about a call, and where it is found. The policy says when."""

from django.db import models

from routing.contracts.hooks import HookKind

_KINDS = [(kind.value, kind.value) for kind in HookKind]


class Hook(models.Model):
    """One hook. A webhook has an address and a sealed secret, a Python hook an entry point.

    `secret_hint` is the end of the secret, so that people can tell which it is.
    """

    name = models.SlugField(max_length=40, unique=True)
    kind = models.CharField(max_length=16, choices=_KINDS)
    url = models.CharField(max_length=500, blank=True)
    sealed_secret = models.BinaryField(default=bytes, blank=True)
    secret_hint = models.CharField(max_length=8, blank=True)
    secret_set_at = models.DateTimeField(null=True, blank=True)
    entry_point = models.CharField(max_length=80, blank=True)
    purpose = models.CharField(max_length=200, blank=True)
    created_at = models.DateTimeField()

    class Meta:
        constraints = [
            models.CheckConstraint(
                condition=(
                    models.Q(kind=HookKind.WEBHOOK.value, entry_point="")
                    & ~models.Q(url="")
                    & ~models.Q(secret_hint="")
                )
                | (models.Q(kind=HookKind.PYTHON.value, url="") & ~models.Q(entry_point="")),
                name="hook_is_one_of_its_kind",
            ),
        ]

    def __str__(self) -> str:
        return self.name
