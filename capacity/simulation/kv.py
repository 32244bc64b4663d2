"""KV blocks of one replica: reference counts, prefix reuse by chained hash, LRU eviction."""

import hashlib
from collections import OrderedDict
from collections.abc import Iterable, Sequence

HASH_BYTES = 8
PIECE_SEPARATOR = b"\xff"  # a byte that UTF-8 never holds, so joined pieces stay unambiguous


def chain_hashes(pieces: Sequence[bytes], block_tokens: int, salt: str = "") -> tuple[int, ...]:
    """Hash of each whole block of `pieces` (one item a token), each over all blocks before it.

    `salt` enters the first block, so that sequences of different salts never share one (vLLM's
    `cache_salt`).
    """
    parent = hashlib.blake2b(salt.encode(), digest_size=HASH_BYTES).digest()
    hashes = []
    for start in range(0, len(pieces) - block_tokens + 1, block_tokens):
        block = PIECE_SEPARATOR.join(pieces[start : start + block_tokens])
        parent = hashlib.blake2b(parent + block, digest_size=HASH_BYTES).digest()
        hashes.append(int.from_bytes(parent, "big"))
    return tuple(hashes)


class BlockPool:
    """Fixed number of blocks.

    A block without owner keeps its content, and can be found by its hash, until it is taken again;
    blocks are taken in the order in which they lost their last owner.
    """

    __slots__ = ("_block_of", "_free", "_hash_of", "_owners", "capacity")

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(capacity))
        self._owners = [0] * capacity
        self._hash_of: dict[int, int] = {}
        self._block_of: dict[int, int] = {}

    @property
    def free_count(self) -> int:
        """Blocks without owner, cached content or not."""
        return len(self._free)

    @property
    def used_count(self) -> int:
        """Blocks with at least one owner."""
        return self.capacity - len(self._free)

    def find(self, hashes: Sequence[int], limit: int) -> list[int]:
        """Blocks that hold the longest prefix of `hashes`, at most `limit`; takes nothing."""
        found = []
        for value in hashes[:limit]:
            block = self._block_of.get(value)
            if block is None:
                break
            found.append(block)
        return found

    def idle_among(self, blocks: Iterable[int]) -> int:
        """How many of `blocks` have no owner: sharing them uses up that much free space."""
        return sum(1 for block in blocks if not self._owners[block])

    def share(self, blocks: Iterable[int]) -> None:
        """Become one more owner of found blocks."""
        for block in blocks:
            if not self._owners[block]:
                del self._free[block]
            self._owners[block] += 1

    def take(self, count: int) -> list[int] | None:
        """`count` blocks with new content, or None (and nothing taken) if so many are not free."""
        if count > len(self._free):
            return None
        free, owners, hash_of = self._free, self._owners, self._hash_of
        taken = []
        for _ in range(count):
            block, _none = free.popitem(last=False)
            if hash_of and (old := hash_of.pop(block, None)) is not None:
                del self._block_of[old]
            owners[block] = 1
            taken.append(block)
        return taken

    def remember(self, block: int, value: int) -> None:
        """Let a filled block be found by its hash; the first block of a hash keeps it."""
        if value not in self._block_of and block not in self._hash_of:
            self._block_of[value] = block
            self._hash_of[block] = value

    def release(self, blocks: Sequence[int]) -> None:
        """Give up ownership; the end of a sequence is evicted before its beginning."""
        free, owners = self._free, self._owners
        for block in reversed(blocks):
            owners[block] = left = owners[block] - 1
            if not left:
                free[block] = None

    def forget(self) -> None:
        """Drop all cached content that has no owner now (a reset of the prefix cache)."""
        for block in list(self._hash_of):
            if not self._owners[block]:
                del self._block_of[self._hash_of.pop(block)]
