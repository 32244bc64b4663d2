"""Which prefixes an endpoint probably holds, as far as its gateway can know: what it sent there.

Blocks are named by chained hashes (`decision.prefix`), so block k is held only together with all
before it. The index forgets the least recently used, as the engine's cache does.
"""

from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

BLOCK_TOKENS: Final = 64  # of a 256-byte block
SHARE: Final = 0.8  # of the KV cache: the rest holds what runs
MOST_BLOCKS: Final = 2_048  # of one prompt


class Residency:
    """Blocks of one endpoint, at most `entries` of them."""

    __slots__ = ("_blocks", "_entries")

    def __init__(self, entries: int) -> None:
        """`entries` as `entries_for` says; 0 remembers nothing."""
        self._entries = entries
        self._blocks: OrderedDict[int, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._blocks)

    def resize(self, entries: int) -> None:
        """Keep another number of blocks from now on."""
        self._entries = entries
        while len(self._blocks) > entries:
            self._blocks.popitem(last=False)

    def held(self, hashes: Sequence[int]) -> int:
        """How many blocks from the start are probably there; changes nothing."""
        blocks = self._blocks
        count = 0
        for value in hashes[:MOST_BLOCKS]:
            if value not in blocks:
                break
            count += 1
        return count

    def sent(self, hashes: Sequence[int]) -> None:
        """A prompt went there: its blocks are the newest, its start newer than its end."""
        blocks = self._blocks
        for value in reversed(hashes[:MOST_BLOCKS]):
            blocks[value] = None
            blocks.move_to_end(value)
        while len(blocks) > self._entries:
            blocks.popitem(last=False)

    def forget(self) -> None:
        """The endpoint started anew."""
        self._blocks.clear()


def entries_for(kv_capacity_tokens: int, block_tokens: int = BLOCK_TOKENS) -> int:
    """Entries that match a replica's KV cache."""
    return int(SHARE * kv_capacity_tokens) // block_tokens
