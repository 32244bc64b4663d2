"""One second of one gateway's traffic, by slice: what the collector folds into minutes.

Sketch bins are `(index, count)` pairs of a DDSketch with relative error 1% over seconds
(`telemetry.stats.sketch` states the mapping); merging is adding counts, so frames may be folded in
any order. A frame is identified by `(gateway_id, incarnation, seq)` and is folded once.
"""

import msgspec

Bins = list[tuple[int, int]]


class SliceDelta(msgspec.Struct, frozen=True, omit_defaults=True):
    """Counts of one slice since the gateway's last frame.

    `refused_input_tokens` are the estimated prompts of what was refused: with `input_tokens` they
    are what callers offer.
    """

    tenant_id: str
    model: str
    pool: str
    work_class: str
    requests: int = 0
    failed: int = 0
    cancelled: int = 0
    refused: dict[str, int] = {}
    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    spend_nanousd: int = 0
    ttft_s: Bins = []
    itl_s: Bins = []
    e2e_s: Bins = []
    refused_input_tokens: int = 0


class ReplicaDelta(msgspec.Struct, frozen=True, omit_defaults=True):
    """What tries on one replica came to since the gateway's last frame.

    A try counts also when the request was then served elsewhere, so that a retry hides no broken
    replica. What is the caller's own fault, a cancelled call and a full engine's refusal are no
    outcome. Times are from sending the try to its first output, of streams: by the octave of the
    prompt's estimated tokens (`telemetry.stats.tries`); `ttft_s` is where gateways of an earlier
    version put all of them.
    """

    replica_id: str
    requests: int = 0
    failed: int = 0
    ttft_s: Bins = []
    ttft_by_octave_s: dict[int, Bins] = {}


class SliceFrame(msgspec.Struct, frozen=True):
    """What one gateway saw up to `at_ms`."""

    gateway_id: str
    incarnation: str
    seq: int
    at_ms: int
    rows: list[SliceDelta]
    replicas: list[ReplicaDelta] = []


encode_frame = msgspec.msgpack.Encoder().encode
decode_frame = msgspec.msgpack.Decoder(SliceFrame).decode
