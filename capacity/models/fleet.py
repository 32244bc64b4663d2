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


class Artifact(models.Model):
    """One version of a model's weights: where they are, and what proves that they are these.

    `location` is what the engine is given to load (a directory, a hub id, a local model's name).
    """

    model = models.ForeignKey(Model, on_delete=models.PROTECT, related_name="artifacts")
    version = models.CharField(max_length=64)
    location = models.CharField(max_length=400)
    sha256 = models.CharField(max_length=64, blank=True)
    size_bytes = models.BigIntegerField(default=0)
    precision = models.CharField(max_length=16, blank=True)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["model", "version"], name="artifact_version_once"),
            models.CheckConstraint(
                condition=models.Q(size_bytes__gte=0), name="artifact_size_not_negative"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.model_id}@{self.version}"


class GpuType(models.Model):
    """What a kind of GPU can do, from its maker's figures: per GPU, dense (not sparse) FLOPS."""

    name = models.CharField(max_length=64, unique=True)
    memory_gib = models.FloatField()
    memory_tb_s = models.FloatField()
    bf16_tflops = models.FloatField()
    fp8_tflops = models.FloatField(null=True, blank=True)
    tdp_w = models.PositiveIntegerField()
    source = models.CharField(max_length=400)
    note = models.CharField(max_length=400, blank=True)

    class Meta:
        constraints = [
            models.CheckConstraint(
                condition=models.Q(memory_gib__gt=0)
                & models.Q(memory_tb_s__gt=0)
                & models.Q(bf16_tflops__gt=0),
                name="gpu_type_figures_positive",
            )
        ]

    def __str__(self) -> str:
        return self.name


class NodeState(models.TextChoices):
    """Whether a node takes replicas."""

    IN_SERVICE = "in_service", "In service"
    CORDONED = "cordoned", "Takes nothing new"
    OUT = "out", "Out of service"


class Node(models.Model):
    """A machine with like GPUs (none: `gpu_count` 0) in one failure domain."""

    name = models.SlugField(max_length=120, unique=True)
    domain = models.ForeignKey(FailureDomain, on_delete=models.PROTECT, related_name="nodes")
    gpu_type = models.ForeignKey(
        GpuType, null=True, blank=True, on_delete=models.PROTECT, related_name="nodes"
    )
    gpu_count = models.PositiveIntegerField(default=0)
    state = models.CharField(max_length=16, choices=NodeState.choices, default=NodeState.IN_SERVICE)
    note = models.CharField(max_length=200, blank=True)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints = [
            models.CheckConstraint(
                condition=models.Q(state__in=NodeState.values), name="node_state_known"
            ),
            models.CheckConstraint(
                condition=models.Q(gpu_count=0) | models.Q(gpu_type__isnull=False),
                name="node_gpus_have_a_type",
            ),
        ]

    def __str__(self) -> str:
        return self.name


class Pool(models.Model):
    """Replicas alike.

    `spec` is the driver's own settings (engine profile, command line, addresses), those of
    `revision`. `surge_replicas` is how many more than desired a running rollout may hold; above 0
    means that a rollout has the pool. `gpus_per_replica` 0 is not known. `capabilities` are what
    its engines are stated to do (`routing.contracts.capabilities`), empty for what is usual.
    """

    name = models.SlugField(max_length=120, unique=True)
    model = models.ForeignKey(Model, on_delete=models.PROTECT, related_name="pools")
    driver = models.CharField(max_length=16, choices=Driver.choices)
    domain = models.ForeignKey(FailureDomain, on_delete=models.PROTECT, related_name="pools")
    hardware = models.CharField(max_length=64, blank=True)
    desired_replicas = models.PositiveIntegerField(default=0)
    gpus_per_replica = models.PositiveIntegerField(default=0)
    kv_capacity_tokens = models.BigIntegerField(default=0)
    block_size_tokens = models.PositiveIntegerField(default=16)
    spec = models.JSONField(default=dict, blank=True)
    revision = models.PositiveIntegerField(default=1)
    surge_replicas = models.PositiveIntegerField(default=0)
    capabilities = models.JSONField(default=list, blank=True)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints = [
            models.CheckConstraint(
                condition=models.Q(driver__in=Driver.values), name="pool_driver_known"
            ),
        ]

    def __str__(self) -> str:
        return self.name


class PoolRevision(models.Model):
    """What a pool's replicas run, numbered and never edited: a rollout moves them to another.

    `engine_version` is what the engine must say of itself (a prefix), empty for any.
    """

    pool = models.ForeignKey(Pool, on_delete=models.PROTECT, related_name="revisions")
    number = models.PositiveIntegerField()
    spec = models.JSONField(default=dict, blank=True)
    block_size_tokens = models.PositiveIntegerField(default=16)
    artifact = models.ForeignKey(
        Artifact, null=True, blank=True, on_delete=models.PROTECT, related_name="revisions"
    )
    engine_version = models.CharField(max_length=64, blank=True)
    note = models.CharField(max_length=400, blank=True)
    author = models.CharField(max_length=150, blank=True)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["pool", "number"], name="pool_revision_once")
        ]

    def __str__(self) -> str:
        return f"{self.pool_id}#{self.number}"


class Replica(models.Model):
    """One engine. `handle` is what the driver needs to find it again (a pid, a pod name).

    `revision` is the pool's revision that it runs, None for the pool's present one. While
    `is_held` it is started but given no work; `is_retired` means drain and remove it, in
    `drain_limit_s` at most (None: the usual time).
    """

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
    revision = models.PositiveIntegerField(null=True, blank=True)
    is_held = models.BooleanField(default=False)
    is_retired = models.BooleanField(default=False)
    drain_limit_s = models.PositiveIntegerField(null=True, blank=True)
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
