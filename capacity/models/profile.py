"""How fast a pool's engines are: what is assumed of them, and what was fitted to what they did."""

from django.db import models

from capacity.models.fleet import Pool


class ProfileVersion(models.Model):
    """Step times fitted to a pool's own windows, numbered and never edited.

    `times` and `prior_times` hold the terms of `StepTimes` by name, in seconds; `revision` is the
    pool's, as it ran. Errors are mean relative ones of the step time: of the fit on windows that it
    had not seen, and of the prior on the same.
    """

    pool = models.ForeignKey(Pool, on_delete=models.PROTECT, related_name="profile_versions")
    number = models.PositiveIntegerField()
    revision = models.PositiveIntegerField()
    prior = models.CharField(max_length=64)
    prior_times = models.JSONField()
    times = models.JSONField()
    windows = models.PositiveIntegerField()
    error_ratio = models.FloatField()
    prior_error_ratio = models.FloatField()
    created_at = models.DateTimeField()

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["pool", "number"], name="profile_version_once"),
            models.CheckConstraint(
                condition=models.Q(error_ratio__gte=0) & models.Q(prior_error_ratio__gte=0),
                name="profile_version_errors_sane",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.pool_id} v{self.number}"


class PoolProfile(models.Model):
    """What holds for a pool, and what its last calibration said.

    `prior` names the profile that is assumed before anything is fitted, empty for that of the
    pool's settings. `is_pinned`: the prior holds whatever was fitted. `seen_ms` is the end of the
    newest window looked at (Unix milliseconds), `skipped` counts windows that say nothing, by why,
    `found` is the fit itself, accepted or not.
    """

    pool = models.OneToOneField(Pool, on_delete=models.PROTECT, related_name="profile")
    prior = models.CharField(max_length=64, blank=True)
    is_pinned = models.BooleanField(default=False)
    reason = models.CharField(max_length=500, blank=True)
    version = models.ForeignKey(
        ProfileVersion, null=True, blank=True, on_delete=models.PROTECT, related_name="+"
    )
    ran_at = models.DateTimeField(null=True, blank=True)
    revision = models.PositiveIntegerField(default=0)
    seen_ms = models.BigIntegerField(default=0)
    windows = models.PositiveIntegerField(default=0)
    skipped = models.JSONField(default=dict, blank=True)
    found = models.JSONField(null=True, blank=True)
    is_accepted = models.BooleanField(default=False)
    error_ratio = models.FloatField(null=True, blank=True)
    prior_error_ratio = models.FloatField(null=True, blank=True)
    verdict = models.CharField(max_length=200, blank=True)

    def __str__(self) -> str:
        return f"profile of pool {self.pool_id}"
