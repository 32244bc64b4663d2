"""Calls with an `Idempotency-Key`: named by digests, their answers recorded, sealed and replayed.

What was charged is remembered and never charged again: whole answers, those cut after output (with
their error event), and calls whose caller hung up (without an answer). Refusals and failures that
cost nothing leave the key free.
"""

import hmac
import os
import re
import zlib
from typing import Final, NamedTuple

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from routing.contracts.enums import LimitScope, RequestStatus, SettleKind
from routing.decision.types import Reason, Refusal
from routing.store.once import ANSWER_MAX_BYTES, BUSY, KEEP_MS, MANY, OTHER, SPENT, Once

HEADER: Final = b"idempotency-key"
PARAM: Final = "Idempotency-Key"
RAW_MAX_BYTES: Final = 4 * 1024 * 1024  # of an answer before compression: 10 ms to replay
RECORDED_MAX_BYTES: Final = 64 * 1024 * 1024  # of all answers being recorded by this process
BUSY_RETRY_S: Final = 1.0
_COMPRESSOR_BYTES: Final = 32 * 1024  # with a window of 8 kB
_WINDOW_BITS: Final = 13
_MEMORY_LEVEL: Final = 6
_KEY: Final = re.compile(rb"[\x21-\x7e]{1,255}\Z")
_NONCE_BYTES: Final = 12

_NO_KEY = Refusal(
    Reason.INVALID_REQUEST,
    "Idempotency-Key must be 1 to 255 visible ASCII characters without spaces.",
    param=PARAM,
)
SPENT_REFUSAL: Final = Refusal(
    Reason.IDEMPOTENCY_SPENT,
    "This Idempotency-Key was used and charged once, but its answer is not kept (too large, or the "
    "caller hung up). Nothing was charged now; use a new key to run it again.",
    param=PARAM,
)
_REFUSALS: Final = {
    SPENT: SPENT_REFUSAL,
    BUSY: Refusal(
        Reason.IDEMPOTENCY_BUSY,
        "The first call with this Idempotency-Key is still running; retry to get its answer.",
        BUSY_RETRY_S,
        param=PARAM,
    ),
    OTHER: Refusal(
        Reason.IDEMPOTENCY_MISMATCH,
        "This Idempotency-Key was used with another body or path; use a new key.",
        param=PARAM,
    ),
    MANY: Refusal(
        Reason.RATE_LIMITED,
        f"The tenant has too many Idempotency-Keys of the last {KEEP_MS // 60_000} minutes.",
        scope=LimitScope.TENANT,
        limit="idempotency_keys",
        param=PARAM,
    ),
}


class Kept(NamedTuple):
    """A call that was answered before: its id, and its answer as the store has it."""

    request_id: str
    sealed: bytes


class Answer(msgspec.Struct, frozen=True, array_like=True):
    """What a caller received: `headers` are finished lines, `body` is compressed."""

    is_stream: bool
    headers: bytes
    body: bytes


def refusal_of(verdict: bytes) -> Refusal:
    """The words for a verdict of the store."""
    return _REFUSALS[verdict]


def is_remembered(kind: SettleKind, status: RequestStatus) -> bool:
    """Whether a call that ended so has used its key up: it was charged, by its own gateway."""
    return kind is SettleKind.SETTLED and status is not RequestStatus.FAILED


class Vault:
    """Digests and seals with keys derived from the deployment's secret, one for each tenant.

    `recorded_bytes` is what recordings hold at present.
    """

    def __init__(self, secret: bytes) -> None:
        """Nothing is derived before it is needed."""
        self._secret = secret
        self.recorded_bytes = 0

    def once(
        self, tenant_id: str, key_id: str, header: bytes, path: bytes, body: bytes
    ) -> str | Refusal:
        """`Once.text` of a call, or a refusal (400) of its header."""
        if _KEY.match(header) is None:
            return _NO_KEY
        scope = f"{tenant_id}\0{key_id}\0".encode()
        return Once(self._digest(b"name", scope, header), self._digest(b"body", path, body)).text

    def seal(self, tenant_id: str, request_id: str, answer: Answer) -> bytes:
        """The answer for the store; empty when it is above its bound."""
        nonce = os.urandom(_NONCE_BYTES)
        raw = _encode(answer)
        if len(raw) > ANSWER_MAX_BYTES:
            return b""
        return nonce + self._cipher(tenant_id).encrypt(nonce, raw, request_id.encode())

    def open(self, tenant_id: str, kept: Kept) -> tuple[Answer, bytes] | None:
        """A sealed answer and its body as sent; None when it was sealed with another secret."""
        nonce, sealed = kept.sealed[:_NONCE_BYTES], kept.sealed[_NONCE_BYTES:]
        try:
            raw = self._cipher(tenant_id).decrypt(nonce, sealed, kept.request_id.encode())
            answer = _decode(raw)
            body = zlib.decompressobj(_WINDOW_BITS).decompress(answer.body, RAW_MAX_BYTES)
        except (InvalidTag, ValueError, msgspec.MsgspecError, zlib.error):
            return None
        return answer, body

    def _digest(self, purpose: bytes, scope: bytes, data: bytes) -> str:
        made = hmac.new(self._derived(purpose), scope + b"\0", "sha256")
        made.update(data)
        return made.hexdigest()[:32]

    def _cipher(self, tenant_id: str) -> AESGCM:
        return AESGCM(self._derived(b"seal\0" + tenant_id.encode()))

    def _derived(self, purpose: bytes) -> bytes:
        return hmac.digest(self._secret, b"headrace once v1\0" + purpose, "sha256")


class Recording:
    """One answer while it is relayed: compressed piece by piece, given up above the bounds."""

    __slots__ = ("_compressor", "_held_bytes", "_pieces", "_raw_bytes", "_vault")

    def __init__(self, vault: Vault) -> None:
        """Nothing is kept before the first bytes."""
        self._vault = vault
        self._compressor = zlib.compressobj(1, zlib.DEFLATED, _WINDOW_BITS, _MEMORY_LEVEL)
        self._pieces: list[bytes] = []
        self._raw_bytes = 0
        self._held_bytes = 0
        self._hold(_COMPRESSOR_BYTES)

    def feed(self, data: bytes) -> None:
        """Take bytes that were sent to the caller."""
        if not self._held_bytes:
            return
        self._raw_bytes += len(data)
        piece = self._compressor.compress(data)
        if piece:
            self._pieces.append(piece)
        if self._raw_bytes > RAW_MAX_BYTES or self._held_bytes + len(piece) > ANSWER_MAX_BYTES:
            self.drop()
        else:
            self._hold(len(piece))

    def close(self) -> bytes | None:
        """All of it, compressed; None when it was too large. Nothing is held afterwards."""
        if not self._held_bytes:
            return None
        whole = b"".join(self._pieces) + self._compressor.flush()
        self.drop()
        return whole

    def drop(self) -> None:
        """Keep nothing."""
        self._vault.recorded_bytes -= self._held_bytes
        self._held_bytes = 0
        self._pieces.clear()

    def _hold(self, size: int) -> None:
        if self._vault.recorded_bytes + size > RECORDED_MAX_BYTES:
            self.drop()
            return
        self._vault.recorded_bytes += size
        self._held_bytes += size


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Answer).decode
