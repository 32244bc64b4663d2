"""Which prefixes an endpoint probably holds, as far as its gateway can know: what it sent there.

Blocks are named by chained hashes (`decision.prefix`), so block k is held only together with all
before it. What was not used of late is forgotten in two generations, about as the engine's cache
forgets it one by one: an exact order of use costs twice the memory at once, and four times as much
after a few million prompts, as its table and its numbers are freed one by one all over the heap.
A generation is three quarters of the cache. With half of it, what a full cache still held was taken
for gone, and X1's later turns lost most of what routing by prefix saves.
"""

from collections.abc import Sequence
from typing import Final

BLOCK_TOKENS: Final = 64  # of a 256-byte block
SHARE: Final = 0.8  # of the KV cache: the rest holds what runs
MOST_BLOCKS: Final = 2_048  # of one prompt


class Residency:
    """Blocks of one endpoint: at least the newest three quarters of `entries`.

    At most one and a half times `entries` where prompts are short beside the cache, and two and a
    half times where one prompt fills it.
    """

    __slots__ = ("_entries", "_older", "_young")

    def __init__(self, entries: int) -> None:
        """`entries` as `entries_for` says; 0 remembers nothing."""
        self._entries = entries
        self._young: set[int] = set()
        self._older: set[int] = set()

    def __len__(self) -> int:
        """Blocks remembered; those used again count twice until the older generation goes."""
        return len(self._young) + len(self._older)

    def resize(self, entries: int) -> None:
        """Keep another number of blocks from now on."""
        self._entries = entries
        if 2 * len(self) > 5 * entries:
            self._older = set()
        if 2 * len(self) > 5 * entries:
            self._young = set()

    def held(self, hashes: Sequence[int]) -> int:
        """How many blocks from the start are probably there; changes nothing."""
        young, older = self._young, self._older
        count = 0
        for value in hashes[:MOST_BLOCKS]:
            if value not in young and value not in older:
                break
            count += 1
        return count

    def sent(self, hashes: Sequence[int]) -> None:
        """A prompt went there: all of its blocks are the newest."""
        young = self._young
        young.update(hashes[: min(MOST_BLOCKS, self._entries)])
        if 4 * len(young) > 3 * self._entries:
            self._older, self._young = young, set()

    def forget(self) -> None:
        """The endpoint started anew."""
        self._young, self._older = set(), set()


def entries_for(kv_capacity_tokens: int, block_tokens: int = BLOCK_TOKENS) -> int:
    """Entries that match a replica's KV cache."""
    return int(SHARE * kv_capacity_tokens) // block_tokens
