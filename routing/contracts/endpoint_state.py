"""What the collector tells gateways and the console about replicas. Unknown is None, never 0."""

import msgspec

from routing.contracts.enums import ReplicaHealth


class EndpointState(msgspec.Struct, frozen=True):
    """One replica as last scraped.

    `at_ms` is when the scrape succeeded; counters are since its start.

    `kv_usage_ratio` is 0..1; `*_per_s` are rates over the last scrape interval, None until two
    scrapes of the same run of the engine exist. `ttft_mean_s` is the engine's own mean over that
    interval, `queue_mean_s` that of the time spent waiting inside it, None when nothing was
    observed. `at_ms` 0: never scraped. `resident_kv_blocks` counts the distinct prefix blocks that
    its cache holds, by its KV events. `queue_age_s` is how long, at least, the oldest request that
    waits in the engine has waited: 0 while none waits, known to a scrape interval.
    """

    replica_id: str
    pool: str
    at_ms: int
    health: ReplicaHealth
    reason: str = ""
    running: int | None = None
    waiting: int | None = None
    kv_usage_ratio: float | None = None
    kv_capacity_tokens: int | None = None
    block_size_tokens: int | None = None
    prompt_tokens_per_s: float | None = None
    generation_tokens_per_s: float | None = None
    prefix_hit_ratio: float | None = None
    ttft_mean_s: float | None = None
    preemptions_total: float | None = None
    engine_version: str = ""
    resident_kv_blocks: int | None = None
    queue_mean_s: float | None = None
    queue_age_s: float | None = None


class PoolState(msgspec.Struct, frozen=True):
    """All replicas of a pool, as of `at_ms` (collector's clock)."""

    pool: str
    at_ms: int
    endpoints: list[EndpointState]


encode_pool_state = msgspec.msgpack.Encoder().encode
decode_pool_state = msgspec.msgpack.Decoder(PoolState).decode
