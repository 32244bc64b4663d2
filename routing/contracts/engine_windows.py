"""What an engine did in a few seconds, from its own counters: what its step times are fitted to."""

import msgspec

WINDOWS_MAX = 2000  # kept of a pool, the newest
SKIPPED = ("few_steps", "preempted", "restarted")  # why a window says nothing of a step's time


class EngineWindow(msgspec.Struct, frozen=True, array_like=True):
    """Sums over one window of a replica, `at_ms` its end (Unix milliseconds).

    `prefill_tokens` were computed (not found in the cache), `prompts` is how many prompts of
    `prompt_tokens` in all were begun to be answered; `kv_tokens` is the mean in use at the scrapes
    that saw something running; `itl_s` is the mean gap between tokens.
    """

    replica_id: str
    at_ms: int
    steps: int
    prefill_tokens: float
    decode_tokens: float
    kv_tokens: float
    prompt_tokens: float
    prompts: float
    itl_s: float


encode_window = msgspec.msgpack.Encoder().encode
decode_window = msgspec.msgpack.Decoder(EngineWindow).decode
