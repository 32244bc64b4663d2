"""What a gateway needs to know, as one immutable, numbered value.

Publishing compiles it; gateways load it from the store (or from their own disk), swap it between
two requests and acknowledge `number`. Money is integer nano-dollars per million tokens, times end
in `_s` or `_ms` (Unix milliseconds for instants). Unknown extra fields are ignored on decode, a
higher `schema_version` than ours is refused by the reader, which then keeps its last good snapshot.
"""

import hashlib

import msgspec

from routing.contracts.capabilities import ApiStyle
from routing.contracts.capacity import CapacityLimit
from routing.contracts.enums import Dimension, LimitScope, WindowKind, WorkClass
from routing.contracts.hooks import HookEntry, HookUse

# Raised where a gateway that knows less would do wrong: 2 has hooks and tasks' caps, which must not
# be skipped.
SCHEMA_VERSION = 2
ALL_MODELS = "*"
MAX_TASK_S = 604_800  # how long a task may take at most, a week: what is known of it is bounded
DEFAULT_KIND = "default"  # of tasks whose kind the policy does not name


class SnapshotError(Exception):
    """The bytes are damaged, or were written by a newer schema than this code knows."""


class Limit(msgspec.Struct, frozen=True):
    """One bound: at most `amount` of `dimension` per `window`, for `scope`.

    `subject` is the key id, model name or work class that the scope names; empty for the tenant
    scope. `anchor_min`: minutes of local time from the calendar's start of a day, week (Monday) or
    month (its first) to the window's; 0 is the calendar's own.
    """

    scope: LimitScope
    dimension: Dimension
    window: WindowKind
    amount: int
    subject: str = ""
    anchor_min: int = 0


class Price(msgspec.Struct, frozen=True):
    """Nano-dollars per million tokens, `image_nanousd` per picture; `version` names the price row.

    `unit_nanousd` is one use of a named resource; its other rates are 0.

    Tokens written to the cache are a part of the input, reasoning a part of the output; None
    charges them like the rest of it.
    """

    version: int
    input_nanousd: int
    cached_nanousd: int
    output_nanousd: int
    valid_from_ms: int = 0
    cache_write_nanousd: int | None = None
    reasoning_nanousd: int | None = None
    image_nanousd: int = 0
    unit_nanousd: int = 0


class KeyEntry(msgspec.Struct, frozen=True):
    """An API key as the gateway sees it; the secret is known only by its keyed digest."""

    id: str
    tenant_id: str
    project_id: str
    prefix: str
    models: tuple[str, ...]
    work_class: WorkClass | None = None
    expires_at_ms: int | None = None


class TenantEntry(msgspec.Struct, frozen=True):
    """A tenant with every limit that applies to it, its keys, models and classes.

    `cache_salt` isolates its prefix cache; `bucket` (0-255) places its counters; `models` may hold
    `ALL_MODELS`, and empty means none.
    """

    id: str
    slug: str
    bucket: int
    timezone: str
    cache_salt: str
    models: tuple[str, ...]
    limits: tuple[Limit, ...] = ()
    is_active: bool = True
    default_class: WorkClass = WorkClass.STANDARD


class Target(msgspec.Struct, frozen=True):
    """A pool that serves a model; low `order` first, `weight` 0 drains.

    With an `adapter` the model is that adapter of the pool's own model: only replicas that list it
    as loaded serve it, under this name.
    """

    pool: str
    order: int = 1
    weight: float = 1.0
    adapter: str = ""


class Fallback(msgspec.Struct, frozen=True):
    """A model that may answer in place of another one that cannot (`decision.fallback`).

    `when` are `contracts.enums.FallbackWhen`; `headroom_ratio` (0..1) of its pools' limits is kept
    for such work.
    """

    model: str
    when: tuple[str, ...]
    headroom_ratio: float


class ModelEntry(msgspec.Struct, frozen=True):
    """A model that the policy serves.

    `prices` is ordered by `valid_from_ms`, oldest first, never empty; `fallbacks` by preference.
    """

    name: str
    context_tokens: int
    output_cap_tokens: int
    bytes_per_token: float
    targets: tuple[Target, ...]
    prices: tuple[Price, ...]
    fallbacks: tuple[Fallback, ...] = ()


class EndpointEntry(msgspec.Struct, frozen=True):
    """One replica's address.

    Only replicas that may take work are listed; a draining one takes none. `kv_events` and
    `kv_replay` are the `ipc://` addresses where its engine tells what its KV cache holds, empty
    when it does not.
    """

    replica_id: str
    host: str
    port: int
    is_draining: bool = False
    ready_at_ms: int = 0
    kv_events: str = ""
    kv_replay: str = ""


class PoolEntry(msgspec.Struct, frozen=True):
    """Replicas alike.

    `served_model` is the name that the engine knows the model by; `takes_priority`: its engines
    schedule by the request's `priority` (others refuse one, or ignore it). Of a hosted provider
    `style` is its API, `sealed_key` its API key (`contracts.sealing`), and `path_prefix` comes
    before the API's own paths; `has_tls`: it is called over TLS. `capabilities` are what its
    engines can do, empty for what the style usually can.
    """

    id: str
    served_model: str
    region: str
    failure_domain: str
    hardware: str
    kv_capacity_tokens: int
    block_size_tokens: int
    endpoints: tuple[EndpointEntry, ...] = ()
    takes_priority: bool = False
    limits: tuple[CapacityLimit, ...] = ()
    style: ApiStyle = ApiStyle.ENGINE
    has_tls: bool = False
    path_prefix: str = ""
    sealed_key: bytes = b""
    capabilities: tuple[str, ...] = ()

    @property
    def is_hosted(self) -> bool:
        """Whether somebody else runs it, behind an API of their own: nobody scrapes it."""
        return self.style is not ApiStyle.ENGINE


class ClassPolicy(msgspec.Struct, frozen=True):
    """Deadlines of a work class, in seconds, and its share (0..1) of every pool's limits.

    `reserve_ratio` is lent while the class asks for nothing, but for `floor_ratio`.
    """

    first_token_s: float
    between_tokens_s: float
    total_s: float
    output_cap_tokens: int | None = None
    reserve_ratio: float = 0.0
    floor_ratio: float = 0.0


class FailurePolicy(msgspec.Struct, frozen=True):
    """What may be tried again, and how hard.

    `continue_lost`: a plain stream whose replica is lost goes on at another from the text sent.
    `backoff_base_s`, `backoff_max_s`: the wait between two tries, see `decision.retry.backoff_s`.
    """

    attempts: int = 2
    retry_per_success: float = 0.1
    retry_burst: float = 10.0
    resend_before_output: bool = False
    continue_lost: bool = False
    backoff_base_s: float = 0.05
    backoff_max_s: float = 2.0


class OutagePolicy(msgspec.Struct, frozen=True):
    """What admission does while the store is away:

    `degraded` (a local share, for `max_s`) or `closed`.
    """

    store_away: str = "degraded"
    share_ratio: float = 0.8
    max_s: float = 300.0


class TaskCaps(msgspec.Struct, frozen=True):
    """Most that a task of a kind may take, from its first call on; None is no cap.

    `max_steps` calls admitted, `max_spend_nanousd` held and spent, `max_repeats` admissions of the
    same step. Every task ends `max_wall_s` after its first call.
    """

    max_steps: int | None = None
    max_spend_nanousd: int | None = None
    max_wall_s: int = MAX_TASK_S
    max_repeats: int | None = None


class PolicyEntry(msgspec.Struct, frozen=True):
    """The published policy's values, defaults filled in."""

    name: str
    version: int
    digest: str
    default_class: WorkClass
    output_cap_tokens: int
    max_choices: int
    classes: dict[str, ClassPolicy]
    failures: FailurePolicy
    outage: OutagePolicy
    stale_after_s: float = 3.0
    hooks: tuple[HookUse, ...] = ()
    slow_start_s: float = 60.0
    workflows: dict[str, TaskCaps] = {}

    def caps_of(self, task_kind: str) -> TaskCaps | None:
        """Caps of a task of this kind; a kind that is not named has those of `default`."""
        return self.workflows.get(task_kind) or self.workflows.get(DEFAULT_KIND)

    @property
    def label(self) -> str:
        """Name that rows and headers carry, such as `main@43`."""
        return f"{self.name}@{self.version}"


class Snapshot(msgspec.Struct, frozen=True):
    """Everything above, numbered. `keys` maps the hex digest of a secret to its entry.

    `resources` are the priced named resources, without `RESOURCE_PREFIX`; prices as a model's.
    `hooks` are those that the policy names.
    """

    schema_version: int
    number: int
    created_at_ms: int
    policy: PolicyEntry
    tenants: dict[str, TenantEntry]
    keys: dict[str, KeyEntry]
    models: dict[str, ModelEntry]
    aliases: dict[str, str]
    pools: dict[str, PoolEntry]
    fleet_limits: tuple[CapacityLimit, ...] = ()
    resources: dict[str, tuple[Price, ...]] = {}
    hooks: dict[str, HookEntry] = {}


_encode = msgspec.msgpack.Encoder(order="deterministic").encode
_decode = msgspec.msgpack.Decoder(Snapshot).decode
_DIGEST_BYTES = 32


def bucket_of(tenant_id: str) -> int:
    """Counter bucket of a tenant: the first 8 bits of SHA-256 of its id, fixed for ever."""
    return hashlib.sha256(tenant_id.encode()).digest()[0]


def encode_snapshot(snapshot: Snapshot) -> bytes:
    """Bytes for the store and the disk: SHA-256 of the body, then the body."""
    body = _encode(snapshot)
    return hashlib.sha256(body).digest() + body


def decode_snapshot(raw: bytes) -> Snapshot:
    """Inverse of `encode_snapshot`.

    Raises `SnapshotError` for damaged bytes or a schema newer than ours.
    """
    body = raw[_DIGEST_BYTES:]
    if hashlib.sha256(body).digest() != raw[:_DIGEST_BYTES]:
        raise SnapshotError("snapshot bytes do not match their digest")
    try:
        snapshot = _decode(body)
    except msgspec.MsgspecError as error:
        raise SnapshotError(f"snapshot cannot be read: {error}") from error
    if snapshot.schema_version > SCHEMA_VERSION:
        raise SnapshotError(
            f"snapshot schema {snapshot.schema_version} is newer than {SCHEMA_VERSION}"
        )
    return snapshot
