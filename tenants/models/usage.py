"""The usage ledger.

`Usage` and `Shape` are day-partitioned tables made by migration, hence unmanaged.

A row's partition day comes from its UUIDv7 request id, so duplicates meet. Only the ledger writer
writes here; corrections are adjustments.
"""

from django.db import models


class Usage(models.Model):
    """One ended reservation. Columns mirror `routing.contracts.usage.UsageEvent`."""

    pk = models.CompositePrimaryKey("day", "request_id")
    day = models.DateField()
    request_id = models.UUIDField()
    kind = models.CharField(max_length=1)
    tenant = models.ForeignKey("tenants.Tenant", on_delete=models.PROTECT, related_name="+")
    key = models.ForeignKey("tenants.ApiKey", on_delete=models.PROTECT, related_name="+")
    project = models.ForeignKey("tenants.Project", on_delete=models.PROTECT, related_name="+")
    model_asked = models.CharField(max_length=200)
    model = models.CharField(max_length=200)
    pool = models.CharField(max_length=120)
    replica = models.CharField(max_length=120)
    region = models.CharField(max_length=64)
    work_class = models.CharField(max_length=16)
    status = models.CharField(max_length=16)
    usage_source = models.CharField(max_length=16)
    is_suspicious = models.BooleanField()
    is_stream = models.BooleanField()
    http_status = models.IntegerField()
    error_code = models.CharField(max_length=64)
    started_at = models.DateTimeField()
    first_token_at = models.DateTimeField(null=True)
    ended_at = models.DateTimeField()
    input_tokens = models.BigIntegerField()
    cached_tokens = models.BigIntegerField()
    output_tokens = models.BigIntegerField()
    reasoning_tokens = models.BigIntegerField()
    cache_write_tokens = models.BigIntegerField(null=True)  # null: booked before it was counted
    images = models.IntegerField(null=True)
    spend_nanousd = models.BigIntegerField()
    held_input_tokens = models.BigIntegerField()
    held_output_tokens = models.BigIntegerField()
    held_nanousd = models.BigIntegerField()
    attempts = models.IntegerField()
    policy = models.CharField(max_length=80)
    price_version = models.IntegerField()
    gateway = models.CharField(max_length=64)
    upstream_request_id = models.CharField(max_length=200)
    task_id = models.CharField(max_length=120)
    task_kind = models.CharField(max_length=64)
    step = models.CharField(max_length=32)
    hops_us = models.JSONField()
    legs = models.JSONField()
    # These five are null in rows that were booked before them.
    session = models.CharField(max_length=120, null=True)  # noqa: DJ001
    parent_id = models.CharField(max_length=120, null=True)  # noqa: DJ001
    task_outcome = models.CharField(max_length=16, null=True)  # noqa: DJ001
    task_score = models.FloatField(null=True)
    operation = models.CharField(max_length=24, null=True)  # noqa: DJ001 - what was called

    class Meta:
        managed = False
        db_table = "tenants_usage"

    def __str__(self) -> str:
        return str(self.request_id)


class Shape(models.Model):
    """Text-free shape of one request, refused ones too (`routing.contracts.usage.ShapeRow`)."""

    pk = models.CompositePrimaryKey("day", "request_id")
    day = models.DateField()
    request_id = models.UUIDField()
    tenant_id = models.BigIntegerField()
    model = models.CharField(max_length=200)
    work_class = models.CharField(max_length=16)
    arrived_at = models.DateTimeField()
    first_token_at = models.DateTimeField(null=True)
    ended_at = models.DateTimeField()
    cancelled_at = models.DateTimeField(null=True)
    outcome = models.CharField(max_length=80)
    max_tokens = models.BigIntegerField(null=True)
    input_tokens = models.BigIntegerField()
    cached_tokens = models.BigIntegerField()
    output_tokens = models.BigIntegerField()
    session = models.CharField(max_length=120)
    task_id = models.CharField(max_length=120)
    task_kind = models.CharField(max_length=64)
    step = models.CharField(max_length=32)
    resend_count = models.IntegerField()
    pool = models.CharField(max_length=120)
    replica = models.CharField(max_length=120)
    prefix_hashes = models.JSONField()
    # Of a refused request only: what refused it. Null where nothing was refused.
    key_id = models.BigIntegerField(null=True)
    refused_code = models.CharField(max_length=64, null=True)  # noqa: DJ001 - null: not refused
    refused_status = models.IntegerField(null=True)
    refused_limit = models.CharField(max_length=120, null=True)  # noqa: DJ001
    refused_scope = models.CharField(max_length=24, null=True)  # noqa: DJ001
    retry_after_ms = models.BigIntegerField(null=True)  # null: waiting did not help

    class Meta:
        managed = False
        db_table = "tenants_shape"

    def __str__(self) -> str:
        return str(self.request_id)


class UsageAdjustment(models.Model):
    """A correction of one usage row:

    added, never edited. `late` comes from the writer, the rest from people.
    """

    request_id = models.UUIDField()
    day = models.DateField()
    tenant = models.ForeignKey("tenants.Tenant", on_delete=models.PROTECT, related_name="+")
    reason = models.CharField(max_length=64)
    note = models.CharField(max_length=200, blank=True)
    requests = models.SmallIntegerField(default=0)
    input_tokens = models.BigIntegerField(default=0)
    cached_tokens = models.BigIntegerField(default=0)
    output_tokens = models.BigIntegerField(default=0)
    spend_nanousd = models.BigIntegerField(default=0)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["request_id", "reason"], name="adjustment_once_per_reason"
            )
        ]
        indexes = [models.Index(fields=["tenant", "-id"], name="adjustment_by_tenant")]

    def __str__(self) -> str:
        return f"{self.request_id} {self.reason}"


class UsageRollup(models.Model):
    """Sums per minute, hour or day and tenant x project x key x model x pool x class x region."""

    grain = models.CharField(max_length=1, choices=[("m", "minute"), ("h", "hour"), ("d", "day")])
    start_at = models.DateTimeField()
    tenant = models.ForeignKey("tenants.Tenant", on_delete=models.PROTECT, related_name="+")
    project_id = models.BigIntegerField()
    key_id = models.BigIntegerField()
    model = models.CharField(max_length=200)
    pool = models.CharField(max_length=120)
    work_class = models.CharField(max_length=16)
    region = models.CharField(max_length=64)
    requests = models.BigIntegerField(default=0)
    failed = models.BigIntegerField(default=0)
    cancelled = models.BigIntegerField(default=0)
    input_tokens = models.BigIntegerField(default=0)
    cached_tokens = models.BigIntegerField(default=0)
    output_tokens = models.BigIntegerField(default=0)
    spend_nanousd = models.BigIntegerField(default=0)
    # What a pool of ours cost per million tokens: all that was reserved, and what was used of it.
    # Null until a cost run has priced the hour (`tenants_poolprice`), and for other grains.
    reserved_nanousd_per_mtok = models.BigIntegerField(null=True)
    used_nanousd_per_mtok = models.BigIntegerField(null=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=[
                    "grain",
                    "start_at",
                    "tenant",
                    "project_id",
                    "key_id",
                    "model",
                    "pool",
                    "work_class",
                    "region",
                ],
                name="rollup_once",
            )
        ]
        indexes = [models.Index(fields=["tenant", "grain", "-start_at"], name="rollup_by_tenant")]

    def __str__(self) -> str:
        return f"{self.grain} {self.start_at} {self.tenant_id}"


class LedgerBucket(models.Model):
    """Where the ledger stands in one bucket's stream (accounting protocol, ledger writer)."""

    bucket = models.PositiveSmallIntegerField(primary_key=True)
    epoch = models.BigIntegerField(default=0)
    run_id = models.CharField(max_length=64, blank=True)
    state = models.CharField(max_length=16, default="rebuilding")
    pos = models.CharField(max_length=40, default="0-0")
    seq = models.BigIntegerField(default=0)
    updated_at = models.DateTimeField(auto_now=True)

    def __str__(self) -> str:
        return f"bucket {self.bucket} epoch {self.epoch} {self.state}"


class CounterDelta(models.Model):
    """A numbered correction of live counters: written with its rows, applied afterwards."""

    bucket = models.PositiveSmallIntegerField()
    seq = models.BigIntegerField()
    epoch = models.BigIntegerField()
    rows = models.JSONField()

    class Meta:
        constraints = [models.UniqueConstraint(fields=["bucket", "seq"], name="delta_seq_once")]

    def __str__(self) -> str:
        return f"bucket {self.bucket} delta {self.seq}"


class WindowUsage(models.Model):
    """Charged sums per counter window:

    what an emptied store is filled from. `suffix` names the counter key.
    """

    bucket = models.PositiveSmallIntegerField()
    suffix = models.CharField(max_length=400)
    window_end_at = models.DateTimeField()
    requests = models.BigIntegerField(default=0)
    input_tokens = models.BigIntegerField(default=0)
    output_tokens = models.BigIntegerField(default=0)
    spend_nanousd = models.BigIntegerField(default=0)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["bucket", "suffix"], name="window_usage_once")
        ]
        indexes = [models.Index(fields=["bucket", "window_end_at"], name="window_usage_by_end")]

    def __str__(self) -> str:
        return self.suffix


class WriterPosition(models.Model):
    """A writer's position in a stream that is not per bucket, committed with its rows."""

    stream = models.CharField(max_length=40, primary_key=True)
    run_id = models.CharField(max_length=64, blank=True)
    pos = models.CharField(max_length=40, default="0-0")

    def __str__(self) -> str:
        return f"{self.stream} {self.pos}"


class DamagedEntry(models.Model):
    """A stream entry that is no event we can book: parked, so that the stream goes on.

    `raw` is the entry's fields as msgpack, cut at the writer's bound. Kept for people: nothing
    reads it back by itself.
    """

    stream = models.CharField(max_length=40)
    entry_id = models.CharField(max_length=40)
    reason = models.CharField(max_length=200)
    raw = models.BinaryField()
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["stream", "entry_id"], name="damaged_entry_once")
        ]
        indexes = [models.Index(fields=["created_at"], name="damaged_by_age")]

    def __str__(self) -> str:
        return f"{self.stream} {self.entry_id}: {self.reason}"
