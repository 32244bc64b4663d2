"""Prefix-chain hashes: what two prompts share, without keeping a byte of either."""

import hashlib

from routing.contracts.usage import MAX_PREFIX_HASHES

BLOCK_BYTES = 256  # about 64 tokens, four engine blocks of 16
_HASH_BYTES = 8


def chain_hashes(salt: bytes, prompt: bytes) -> list[int]:
    """Signed 64-bit hashes of each whole block and all before it, at most `MAX_PREFIX_HASHES`.

    `salt` (tenant, model) seeds the chain: tenants never share a hash. Equal prompts up to block k
    give equal first k hashes; a partial last block gives none.
    """
    hashes = []
    previous = salt
    whole = min(len(prompt) // BLOCK_BYTES, MAX_PREFIX_HASHES) * BLOCK_BYTES
    for start in range(0, whole, BLOCK_BYTES):
        block = prompt[start : start + BLOCK_BYTES]
        previous = hashlib.blake2b(previous + block, digest_size=_HASH_BYTES).digest()
        hashes.append(int.from_bytes(previous, "big", signed=True))
    return hashes
