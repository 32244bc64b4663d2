"""Playbooks: what overload does to whom, each version, each run, and every act with its effect."""

from django.conf import settings
from django.db import models


class PlaybookMode(models.TextChoices):
    """Whether a playbook acts.

    `dry_run` decides and records the same, and touches nothing; `ask` as well, until a person
    approves the run within its time.
    """

    OFF = "off", "Off"
    DRY_RUN = "dry_run", "Dry run"
    ASK = "ask", "Ask first"
    ARMED = "armed", "Armed"


class Playbook(models.Model):
    """A named playbook; `version` is the number of the document that it follows."""

    name = models.SlugField(max_length=63, unique=True)
    mode = models.CharField(
        max_length=8, choices=PlaybookMode.choices, default=PlaybookMode.DRY_RUN.value
    )
    version = models.PositiveIntegerField(default=1)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints = [
            models.CheckConstraint(
                condition=models.Q(mode__in=PlaybookMode.values), name="playbook_mode_known"
            )
        ]

    def __str__(self) -> str:
        return self.name


class PlaybookVersion(models.Model):
    """One document (`capacity.playbooks.rules`), defaults filled in."""

    playbook = models.ForeignKey(Playbook, on_delete=models.PROTECT, related_name="versions")
    number = models.PositiveIntegerField()
    document = models.JSONField()
    note = models.CharField(max_length=400, blank=True)
    author = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, blank=True, on_delete=models.PROTECT, related_name="+"
    )
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["playbook", "number"], name="playbook_version_once")
        ]

    def __str__(self) -> str:
        return f"{self.playbook_id}@{self.number}"


class PlaybookRun(models.Model):
    """From the first step that was engaged to the last that was undone, for one subject.

    `subject` is a tenant's id or a pool's name, `label` what pages show. `samples` are
    `[Unix seconds, signal or null]`, one an evaluation, bounded. `baseline` is what the signal is
    measured against, frozen at the start; null where the signal has none. `asked_until` is when a
    run that asks first gives up; it is a dry run until `approved_at`.
    """

    playbook = models.ForeignKey(Playbook, on_delete=models.PROTECT, related_name="runs")
    version = models.PositiveIntegerField()
    is_dry_run = models.BooleanField()
    subject = models.CharField(max_length=120)
    label = models.CharField(max_length=120)
    depth = models.PositiveIntegerField(default=0)
    started_at = models.DateTimeField()
    ended_at = models.DateTimeField(null=True, blank=True)
    end_reason = models.CharField(max_length=400, blank=True)
    baseline = models.FloatField(null=True, blank=True)
    start_value = models.FloatField()
    peak_value = models.FloatField()
    last_value = models.FloatField(null=True, blank=True)
    samples = models.JSONField(default=list)
    asked_until = models.DateTimeField(null=True, blank=True)
    approved_at = models.DateTimeField(null=True, blank=True)
    approved_by = models.CharField(max_length=150, blank=True, default="", db_default="")

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["playbook", "subject"],
                condition=models.Q(ended_at=None),
                name="playbook_run_one_active",
            )
        ]
        indexes = [models.Index(fields=["playbook", "-id"], name="playbook_run_newest")]

    def __str__(self) -> str:
        return f"run {self.pk} on {self.label}"


class PlaybookAct(models.Model):
    """One step engaged: the signal that caused it, what was done, the effect, and its undo.

    `before` and `after` are the figures of `capacity.playbooks.signals.Effect`; `after` is kept
    current until the act is undone. `overrides` are ids and words of what was set; none in a dry
    run, which has the words alone.
    """

    run = models.ForeignKey(PlaybookRun, on_delete=models.PROTECT, related_name="acts")
    step = models.PositiveIntegerField()
    title = models.CharField(max_length=120)
    at = models.DateTimeField()
    value = models.FloatField(null=True, blank=True)
    overrides = models.JSONField(default=list)
    before = models.JSONField(default=dict)
    after = models.JSONField(default=dict)
    undone_at = models.DateTimeField(null=True, blank=True)
    undone_by = models.CharField(max_length=150, blank=True)

    def __str__(self) -> str:
        return f"{self.run_id}: {self.title}"


class PlaybookWatch(models.Model):
    """Where a playbook stands with one subject (`routing.decision.playbook.State`) until idle."""

    playbook = models.ForeignKey(Playbook, on_delete=models.CASCADE, related_name="watches")
    subject = models.CharField(max_length=120)
    label = models.CharField(max_length=120, blank=True, default="", db_default="")
    state = models.JSONField()

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["playbook", "subject"], name="playbook_watch_once")
        ]

    def __str__(self) -> str:
        return f"{self.playbook_id} on {self.subject}"
