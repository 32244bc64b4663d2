"""The fleet: where it is, what it serves, and every state a replica went through."""

from django.db import models

from routing.contracts.enums import ReplicaLifecycle


class Driver(models.TextChoices):
    """Who starts a pool's replicas."""

    SIMULATED = "simulated", "Bundled simulated engine"
    PROCESS = "process", "Local vLLM process"
    STATIC = "static", "Given addresses"
    KUBERNETES = "kubernetes", "Kubernetes"


class Region(models.Model):
    """A place with its own failure domains."""

    slug = models.SlugField(max_length=64, unique=True)
    name = models.CharField(max_length=120)

    def __str__(self) -> str:
        return self.slug


class FailureDomain(models.Model):
    """What fails together inside a region."""

    region = models.ForeignKey(Region, on_delete=models.PROTECT, related_name="domains")
    slug = models.SlugField(max_length=64)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["region", "slug"], name="domain_once_per_region")
        ]

    def __str__(self) -> str:
        return f"{self.region_id}/{self.slug}"


class Model(models.Model):
    """A model that can be served.

    `bytes_per_token` is the low quantile used to bound input estimates.
    """

    name = models.CharField(max_length=200, unique=True)
    context_tokens = models.PositiveIntegerField()
    output_cap_tokens = models.PositiveIntegerField(default=4096)
    bytes_per_token = models.FloatField(default=2.5)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints = [
            models.CheckConstraint(
                condition=models.Q(bytes_per_token__gte=1) & models.Q(bytes_per_token__lte=8),
                name="model_bytes_per_token_sane",
            ),
            models.CheckConstraint(
                condition=models.Q(context_tokens__gt=0), name="model_has_context"
            ),
        ]

    def __str__(self) -> str:
        return self.name


class Pool(models.Model):
    """Replicas alike.

    `spec` is the driver's own settings (engine profile, command line, addresses).
    """

    name = models.SlugField(max_length=120, unique=True)
    model = models.ForeignKey(Model, on_delete=models.PROTECT, related_name="pools")
    driver = models.CharField(max_length=16, choices=Driver.choices)
    domain = models.ForeignKey(FailureDomain, on_delete=models.PROTECT, related_name="pools")
    hardware = models.CharField(max_length=64, blank=True)
    desired_replicas = models.PositiveIntegerField(default=0)
    kv_capacity_tokens = models.BigIntegerField(default=0)
    block_size_tokens = models.PositiveIntegerField(default=16)
    spec = models.JSONField(default=dict, blank=True)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints = [
            models.CheckConstraint(
                condition=models.Q(driver__in=Driver.values), name="pool_driver_known"
            ),
        ]

    def __str__(self) -> str:
        return self.name


class Replica(models.Model):
    """One engine. `handle` is what the driver needs to find it again (a pid, a pod name)."""

    pool = models.ForeignKey(Pool, on_delete=models.PROTECT, related_name="replicas")
    name = models.CharField(max_length=120, unique=True)
    ordinal = models.PositiveIntegerField()
    host = models.CharField(max_length=255)
    port = models.PositiveIntegerField(default=0)
    handle = models.JSONField(default=dict, blank=True)
    lifecycle = models.CharField(
        max_length=16,
        choices=[(item.value, item.value) for item in ReplicaLifecycle],
        default=ReplicaLifecycle.COLD.value,
    )
    lifecycle_since = models.DateTimeField()
    cause = models.CharField(max_length=200, blank=True)
    created_at = models.DateTimeField(auto_now_add=True)
    removed_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["pool", "ordinal"],
                condition=models.Q(removed_at=None),
                name="replica_ordinal_once_per_pool",
            ),
            models.CheckConstraint(
                condition=models.Q(lifecycle__in=[item.value for item in ReplicaLifecycle]),
                name="replica_lifecycle_known",
            ),
        ]
        indexes = [models.Index(fields=["pool", "ordinal"], name="replica_by_pool")]

    def __str__(self) -> str:
        return self.name


class ReplicaChange(models.Model):
    """One change of a replica's lifecycle: append-only, so that replica-hours can be priced."""

    replica = models.ForeignKey(Replica, on_delete=models.PROTECT, related_name="changes")
    at = models.DateTimeField()
    before = models.CharField(max_length=16, blank=True)
    after = models.CharField(max_length=16)
    cause = models.CharField(max_length=200, blank=True)

    class Meta:
        indexes = [models.Index(fields=["replica", "at"], name="change_by_replica")]

    def __str__(self) -> str:
        return f"{self.replica_id} {self.before}->{self.after}"
