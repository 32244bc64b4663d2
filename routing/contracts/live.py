"""What the collector publishes for live pages, once a second (fields of the hash `keys.LIVE`).

`epoch` names a collector's run and `seq` its publication: within an epoch, states with equal `seq`
are equal. What each figure means is stated in `telemetry.live.rules`.
"""

import msgspec

from routing.contracts.endpoint_state import EndpointState

# Fields of the hash.
SLICES = "slices"
SLICES_BY_MODEL = "slices:model"  # tenant x model: what tenants see, who see no pools
SLICES_BY_TENANT = "slices:tenant"
SLICES_TOTAL = "slices:total"
POOL = "pool"
POOL_HISTORY = "pool:history"


class LiveSlice(msgspec.Struct, frozen=True, array_like=True):
    """One row; in a grouped view the columns that were summed over are empty."""

    id: str
    tenant_id: str
    tenant: str
    model: str
    pool: str
    requests: int
    failed: int
    refused: int
    input_tokens: int
    output_tokens: int
    ttft_count: int
    ttft_p50_s: float | None
    ttft_p95_s: float | None
    ttft_p99_s: float | None
    spend_nanousd: int
    spend_minutes_nanousd: tuple[int, ...] = ()
    refused_input_tokens: int = 0


class LiveSlices(msgspec.Struct, frozen=True):
    """Rows of one grouping.

    Counts and quantiles span `window_s`, spend runs since `spend_since_ms`.
    `frames_at_ms` is when the newest gateway report was made; None before the first.
    """

    epoch: str
    seq: int
    at_ms: int
    window_s: int
    spend_since_ms: int
    frames_at_ms: int | None
    rows: list[LiveSlice]


class LivePool(msgspec.Struct, frozen=True):
    """Every replica as last scraped."""

    epoch: str
    seq: int
    at_ms: int
    rows: list[EndpointState]


class LivePoolHistory(msgspec.Struct, frozen=True):
    """KV occupancy (0..1, None unknown) per replica, one value a `step_s`, the last at `at_ms`."""

    at_ms: int
    step_s: int
    kv_usage_ratio: dict[str, list[float | None]]


encode_live = msgspec.msgpack.Encoder().encode
decode_live_slices = msgspec.msgpack.Decoder(LiveSlices).decode
decode_live_pool = msgspec.msgpack.Decoder(LivePool).decode
decode_live_history = msgspec.msgpack.Decoder(LivePoolHistory).decode
