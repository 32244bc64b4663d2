"""What tells one step of a task from another: model, and the last two items of its prompt.

In an agent's loop these are what the model said last (a tool and its arguments) and what came of it
(the tool's answer): the same pair again is the same step again, however long the prompt has grown.
Ids of tool calls are new each time, so they are left out. Only a keyed digest leaves this module.
"""

import hashlib
from typing import Any, Final

import msgspec

from routing.gateway.dialects.body import Call
from routing.gateway.dialects.fields import decode_items

DIGEST_BYTES: Final = 8
MAX_READ_BYTES: Final = 65_536  # of the two items; larger ones are taken as they are spelled
_ITEMS: Final = 2
_KEY_BYTES: Final = 64  # most that BLAKE2b takes
_IDS: Final = frozenset(("id", "call_id", "tool_call_id", "tool_use_id", "response_id"))
_decode: Final = msgspec.json.Decoder().decode
_encode: Final = msgspec.json.Encoder(order="deterministic").encode


def pair_digest(salt: str, model: str, call: Call) -> bytes:
    """Digest of a call's step under the tenant's own salt; the same on every gateway."""
    operation = call.operation
    begin, end = call.spans.get(operation.field, (0, 0))
    made = hashlib.blake2b(key=salt.encode()[:_KEY_BYTES], digest_size=DIGEST_BYTES)
    made.update(b"%b\0%b\0" % (operation.name.encode(), model.encode()))
    made.update(_pair(call.body[begin:end]))
    return made.digest()


def _pair(prompt: bytes) -> bytes:
    if not prompt.startswith(b"["):
        return prompt
    items = decode_items(prompt)
    last = [bytes(item) for item in items[-_ITEMS:]]
    if sum(map(len, last)) > MAX_READ_BYTES:
        return b"\0".join(last)
    return b"\0".join(_encode(_without_ids(_decode(item))) for item in last)


def _without_ids(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_ids(item) for key, item in value.items() if key not in _IDS}
    if isinstance(value, list):
        return [_without_ids(item) for item in value]
    return value
