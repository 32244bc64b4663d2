"""Which endpoint should see a conversation again: the one that holds its prefix, else its home.

A prefix that a gateway has sent somewhere saves that endpoint its prefill. Without such memory (a
new session, another gateway, a restart) the home is chosen by rendezvous hashing, so every gateway
agrees, a new endpoint takes only its own share, and one that goes moves only what it had. Neither
draws more than 1.25 of the mean work plus one (consistent hashing with bounded loads), nor when the
wait there costs more than the prefill it may save.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from routing.decision.filters import Candidate
from routing.decision.predict import most_with_affinity
from routing.decision.residency import BLOCK_TOKENS

_MASK: Final = (1 << 64) - 1
_REMEMBERED: Final = 16_384  # endpoint ids whose number is kept: 64 B each


@dataclass(slots=True)
class Affinity:
    """What is known of a request's past: `place` numbers its session or first block.

    `blocks` are prefix blocks that endpoints probably hold, by endpoint id; those with none may be
    left out.
    """

    place: int
    blocks: Mapping[str, int]


def place_of(salt: str, name: str) -> int:
    """Number of a session of a tenant: 64 bits, equal on every gateway."""
    raw = hashlib.blake2b(f"{salt}\0{name}".encode(), digest_size=8).digest()
    return int.from_bytes(raw, "big")


def held_tokens(affinity: Affinity, able: Sequence[Candidate], input_tokens: int) -> dict[str, int]:
    """Prompt tokens that each endpoint need not compute, as far as affinity may count on them."""
    most = most_with_affinity(sum(one.in_flight for one in able), len(able))
    open_to = [one for one in able if one.in_flight < most]
    known = {
        one.id: min(blocks * BLOCK_TOKENS, input_tokens - 1)
        for one in open_to
        if (blocks := affinity.blocks.get(one.id, 0))
    }
    if known or not open_to or any(affinity.blocks.get(one.id) for one in able):
        return known
    return {home_of(affinity.place, open_to): input_tokens}


def home_of(place: int, endpoints: Sequence[Candidate]) -> str:
    """Id of the endpoint with the highest draw for `place` (rendezvous hashing)."""
    best = max(endpoints, key=lambda one: (_mixed(place ^ _number_of(one.id)), one.id))
    return best.id


@lru_cache(maxsize=_REMEMBERED)
def _number_of(endpoint_id: str) -> int:
    return int.from_bytes(hashlib.blake2b(endpoint_id.encode(), digest_size=8).digest(), "big")


def _mixed(value: int) -> int:
    """The finaliser of splitmix64: each bit of the input moves half of the output's."""
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)
