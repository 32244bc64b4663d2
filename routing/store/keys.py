"""Every key name in the store, in one place.

Tenant counters carry the hash tag of their bucket, pool state that of its pool, so each script
touches one cluster slot. Counter keys below a bucket are built by the scripts from the suffixes
made here.
"""

from urllib.parse import unquote

BUCKETS = 256
LAYOUT = "3"  # of counter keys and holds; another one is another store, rebuilt from the ledger

SNAPSHOT = "hr:{snapshot}"  # bytes of the newest published snapshot
SNAPSHOT_NUMBER = "hr:{snapshot}:number"  # its number, cheap to poll
OVERRIDES = "hr:{overrides}"  # bytes of the overrides in force, all of them
OVERRIDES_VERSION = "hr:{overrides}:version"  # names that content, cheap to poll
NUDGES = "hr:nudges"  # pub/sub: topic names ("snapshot", "live", "jobs", ...)
GATEWAYS = "hr:gateways"  # hash: gateway id -> GatewayStatus
PROCESSES = "hr:processes"  # hash: "<name>:<pid>" -> ProcessStatus
WRITE_PROBE = "hr:write-probe"  # written by who asks whether the store takes writes
SLICE_FRAMES = "hr:frames"  # stream of SliceFrame, field "f"
SHAPES = "hr:shapes"  # stream of lists of ShapeRow, field "s"
ESTIMATES = "hr:estimates"  # hash: gateway id -> GatewayEstimates
SWEEP_LEASE = "hr:{sweep}:lease"
POOLS_WITH_STATE = "hr:pools"  # set of pool ids that have a state key
LIVE = "hr:live"  # hash: channel -> latest live view state (see telemetry.live.rules)
COLLECTOR_LEASE = "hr:{collector}:lease"
SLICE_POSITION = "hr:{slices}:position"  # hash: how far SLICE_FRAMES is folded, moved with the fold
SLICE_DIRTY = "hr:{slices}:dirty"  # sorted set: minute -> number of the last fold into it
SLICE_MINUTES_KEPT = 60


def run_name(run_id: str) -> str:
    """What scripts compare: the server's process, and how the keys of ours that it holds look."""
    return f"{run_id}.{LAYOUT}"


def bucket_tag(bucket: int) -> str:
    """Prefix of a bucket's keys, such as `{b17}`."""
    return f"{{b{bucket}}}"


def bucket_meta(bucket: int) -> str:
    """Hash: epoch, run_id, state, pos, seq."""
    return bucket_tag(bucket) + ":meta"


def bucket_usage(bucket: int) -> str:
    """Stream of ended reservations."""
    return bucket_tag(bucket) + ":usage"


def bucket_leases(bucket: int) -> str:
    """Sorted set: request id -> expiry in ms."""
    return bucket_tag(bucket) + ":leases"


def hold(bucket: int, request_id: str) -> str:
    """String: one live reservation (`store.packed.read_hold`)."""
    return f"{bucket_tag(bucket)}:h:{request_id}"


def window_name(window: str, anchor_min: int) -> str:
    """A window inside counter keys: `mo`, or `mo@20760` anchored, so that neither counts the other.

    `anchor_min` as in `contracts.snapshot.Limit`.
    """
    return f"{window}@{anchor_min}" if anchor_min else window


def counter_base(tenant_id: str, scope: str, subject: str, window: str) -> str:
    """Base of a counter group. Window scripts append `:<start_ms>`; gauges are used as they are.

    `window` is from `window_name`. The subject is a key id, a model name or a class; it is quoted
    so that no name can reach another counter's key.
    """
    return f"{tenant_id}:{scope}:{_quoted(subject)}:{window}"


def task_name(task: str) -> str:
    """A task's name as keys and scripts have it; `read_task` reads it."""
    return _quoted(task)


def read_task(name: str) -> str:
    """The task that `task_name` named."""
    return unquote(name)


def task_base(tenant_id: str, task: str) -> str:
    """Base of a task's counter; `:<start_ms>` of its first call follows."""
    return f"{tenant_id}:task:{_quoted(task)}:t"


def task_record(bucket: int, tenant_id: str, task: str) -> str:
    """Hash: what is known of a live task (`scripts/task.lua`)."""
    return f"{bucket_tag(bucket)}:task:{tenant_id}:{_quoted(task)}"


def live_tasks(bucket: int, tenant_id: str) -> str:
    """Sorted set: a tenant's live tasks by when they are forgotten (ms)."""
    return f"{bucket_tag(bucket)}:tasks:{tenant_id}"


def _quoted(subject: str) -> str:
    return subject.replace("%", "%25").replace(":", "%3A").replace("{", "%7B").replace("}", "%7D")


def credits_of(scope: str, name: str) -> str:
    """Hash: what gateways have leased of a pool's limits, or of the fleet's (no name)."""
    return f"hr:{{credits:{scope}:{name}}}"


def pool_state(pool: str) -> str:
    """Latest PoolState of a pool."""
    return f"hr:{{pool:{pool}}}:state"


def engine_windows(pool: str) -> str:
    """List of the pool's newest EngineWindows, oldest first."""
    return f"hr:{{pool:{pool}}}:windows"


def engine_windows_skipped(pool: str) -> str:
    """Hash: why windows of the pool said nothing of its step times -> how many."""
    return f"hr:{{pool:{pool}}}:windows:skipped"


def slice_minute(minute: int) -> str:
    """Hash of one minute (Unix minute number): slice key -> merged sums."""
    return f"hr:{{slices}}:{minute}"


def class_minute(minute: int) -> str:
    """Hash of one minute: model x work class over all tenants and pools -> merged sums."""
    return f"hr:{{slices}}:{minute}:classes"


def replica_span(span: int) -> str:
    """Hash of five seconds (Unix time over five): replica id -> sums of its tries."""
    return f"hr:{{slices}}:replicas:{span}"


def sign_in_failures(subject_digest: str) -> str:
    """Counter of failed sign-ins of one name from one address; expires by itself."""
    return f"hr:signin:{subject_digest}"


def returns_day(tenant_id: str, day: int) -> str:
    """Hash of a UTC day: `<limit>|admitted` and `|refused` counts of callers back when told."""
    return f"hr:{{returns:{tenant_id}}}:{day}"
