"""A rollout: a pool's replicas replaced one by one, every step a row."""

from django.db import models

from capacity.models.fleet import Pool, Replica


class RolloutState(models.TextChoices):
    """Where a rollout stands."""

    RUNNING = "running", "Running"
    PAUSED = "paused", "Paused"
    ROLLING_BACK = "rolling_back", "Rolling back"
    DONE = "done", "Done"
    ROLLED_BACK = "rolled_back", "Rolled back"
    CANCELLED = "cancelled", "Cancelled"
    FAILED = "failed", "Failed"


ACTIVE = (RolloutState.RUNNING, RolloutState.PAUSED, RolloutState.ROLLING_BACK)
_ACTIVE_VALUES = [state.value for state in ACTIVE]


class OnTooFew(models.TextChoices):
    """What becomes of a new replica that too few requests reached to judge it."""

    GO_ON = "go_on", "Go on, and say so"
    HOLD = "hold", "Hold: a person decides"


class Rollout(models.Model):
    """Moves a pool from one revision to another; at most one at a time for a pool.

    `cause` says why it went back, failed, was stopped or waits. `resumes_to` is the state that a
    pause interrupted. Times in seconds. `judge_*`, `on_too_few` and the two thresholds are
    `capacity.rollouts.rules.judging.Bar`; `pause_after` are numbers of replaced replicas after
    which it waits for a person, `pauses_taken` the largest one where it did.
    """

    pool = models.ForeignKey(Pool, on_delete=models.PROTECT, related_name="rollouts")
    from_revision = models.PositiveIntegerField()
    to_revision = models.PositiveIntegerField()
    state = models.CharField(
        max_length=16, choices=RolloutState.choices, default=RolloutState.RUNNING
    )
    resumes_to = models.CharField(max_length=16, blank=True)
    reason = models.CharField(max_length=400, blank=True)
    cause = models.CharField(max_length=400, blank=True)
    replicas = models.PositiveIntegerField(default=0)
    load_limit_s = models.PositiveIntegerField(default=600)
    warm_s = models.PositiveIntegerField(default=60)
    drain_limit_s = models.PositiveIntegerField(default=60)
    judge_requests = models.PositiveIntegerField(default=50, db_default=50)
    judge_limit_s = models.PositiveIntegerField(default=60, db_default=60)
    on_too_few = models.CharField(
        max_length=8, choices=OnTooFew.choices, default=OnTooFew.GO_ON, db_default="go_on"
    )
    most_ttft_ratio = models.FloatField(default=1.25, db_default=1.25)
    most_error_excess_ratio = models.FloatField(default=0.02, db_default=0.02)
    pause_after = models.JSONField(default=list, db_default=models.Value([], models.JSONField()))
    pauses_taken = models.PositiveIntegerField(default=0, db_default=0)
    author = models.CharField(max_length=150, blank=True)
    idempotency_key = models.CharField(max_length=200, blank=True)
    request_digest = models.CharField(max_length=64, blank=True)
    created_at = models.DateTimeField(auto_now_add=True)
    ended_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["pool"],
                condition=models.Q(state__in=_ACTIVE_VALUES),
                name="rollout_one_active_per_pool",
            ),
            models.UniqueConstraint(
                fields=["author", "idempotency_key"],
                condition=~models.Q(idempotency_key=""),
                name="rollout_once_per_key",
            ),
            models.CheckConstraint(
                condition=models.Q(state__in=RolloutState.values), name="rollout_state_known"
            ),
            models.CheckConstraint(
                condition=models.Q(on_too_few__in=OnTooFew.values), name="rollout_too_few_known"
            ),
        ]
        indexes = [models.Index(fields=["pool", "id"], name="rollout_by_pool")]

    def __str__(self) -> str:
        return f"rollout {self.pk}"


class RolloutLane(models.Model):
    """One replica replaced by another: `new` comes up at `revision`, then `old` drains and goes.

    `result` is empty while it is under way, then `done` or `dropped` (with `cause`). `judgement` is
    how the new one compared with the old ones, as last looked at (`selectors.Judgement`), empty
    before; `is_waived` that a person let it pass unjudged.
    """

    rollout = models.ForeignKey(Rollout, on_delete=models.PROTECT, related_name="lanes")
    number = models.PositiveIntegerField()
    revision = models.PositiveIntegerField()
    old = models.ForeignKey(Replica, on_delete=models.PROTECT, related_name="+")
    new = models.ForeignKey(
        Replica, null=True, blank=True, on_delete=models.PROTECT, related_name="+"
    )
    step = models.CharField(max_length=16)
    step_since = models.DateTimeField()
    result = models.CharField(max_length=16, blank=True)
    cause = models.CharField(max_length=400, blank=True)
    judgement = models.JSONField(default=dict, db_default=models.Value({}, models.JSONField()))
    is_waived = models.BooleanField(default=False, db_default=False)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["rollout", "number"], name="lane_number_once"),
            models.UniqueConstraint(
                fields=["rollout"], condition=models.Q(result=""), name="lane_one_open"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.rollout_id}/{self.number}"


class RolloutStep(models.Model):
    """One step of a lane with its time. A lane takes each step once: the table sees to it."""

    lane = models.ForeignKey(RolloutLane, on_delete=models.PROTECT, related_name="steps")
    step = models.CharField(max_length=16)
    begun_at = models.DateTimeField()
    ended_at = models.DateTimeField(null=True, blank=True)
    note = models.CharField(max_length=400, blank=True)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["lane", "step"], name="step_once_per_lane")]

    def __str__(self) -> str:
        return f"{self.lane_id} {self.step}"
