"""What the walk does for a call with an idempotency key: name it, seal its answer, repeat it."""

from routing.decision.types import Refusal
from routing.gateway.exchange import Exchange
from routing.gateway.once import Answer, Kept, Vault
from routing.gateway.reply import identity_headers, replay


def name_call(vault: Vault, exchange: Exchange, header: bytes, path: bytes) -> Refusal | None:
    """Note the key and body that the call stands for, or refuse a key that is none."""
    once = vault.once(exchange.tenant.id, exchange.key.id, header, path, exchange.call.body)
    if isinstance(once, Refusal):
        return once
    exchange.once = once
    return None


def sealed_answer(vault: Vault, exchange: Exchange) -> bytes:
    """What was sent to the caller, for the store; empty if it is too large or there is no key."""
    recording = exchange.recording
    body = recording.close() if recording is not None else None
    if body is None:
        return b""
    kept = Answer(exchange.call.is_stream, identity_headers(exchange), body)
    return vault.seal(exchange.tenant.id, exchange.request_id, kept)


def answer_again(vault: Vault, exchange: Exchange, kept: Kept) -> tuple[bytes, bool] | None:
    """(bytes, keep alive) of an answer given before; None when it cannot be opened."""
    found = vault.open(exchange.tenant.id, kept)
    if found is None:
        return None
    answer, body = found
    request = exchange.request
    keep_alive = request.keep_alive and not (answer.is_stream and request.is_http10)
    return replay(request, answer, body), keep_alive
