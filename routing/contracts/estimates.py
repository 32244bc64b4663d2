"""What gateways have learnt of each model's bytes per token, as they tell one another."""

import msgspec

MAX_MODELS = 200  # of one gateway; a snapshot with more leaves the rest at their prior
KEPT_MS = 7 * 24 * 3_600_000  # what a gateway learnt is used this long after its last word

Bins = list[tuple[int, int]]


class Learnt(msgspec.Struct, frozen=True):
    """Of one model: sketches as (bin, count) pairs (`telemetry.stats.sketch`).

    `plain` and `dense` hold bytes per reported token, `error` held input tokens per reported one,
    `template` tokens that small prompts had beyond their text.
    """

    model: str
    plain: Bins
    dense: Bins
    error: Bins
    template: Bins = []


class GatewayEstimates(msgspec.Struct, frozen=True):
    """One gateway's word; its counts are its own, so the sum over gateways is everybody's."""

    gateway_id: str
    at_ms: int
    learnt: list[Learnt]


encode_estimates = msgspec.msgpack.Encoder().encode
decode_estimates = msgspec.msgpack.Decoder(GatewayEstimates).decode
