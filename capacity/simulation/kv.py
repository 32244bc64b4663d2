"""KV blocks of one replica: reference counts, prefix reuse by chained hash, LRU eviction."""

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence

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
    blocks are taken in the order in which they lost their last owner. Blocks without a hash are
    alike, so they are only counted: free ones stand in that order as runs, under negative keys.
    """

    __slots__ = (
        "_block_of",
        "_evicted",
        "_free",
        "_hash_of",
        "_owners",
        "_serial",
        "capacity",
        "free_count",
    )

    def __init__(self, capacity: int, evicted: Callable[[int], None] | None = None) -> None:
        """All are free. `evicted` is told the hash of each block whose content is overwritten."""
        self.capacity = capacity
        self.free_count = capacity  # blocks without owner, cached content or not
        self._evicted = evicted
        self._free: OrderedDict[int, int] = OrderedDict({-1: capacity})
        self._owners: dict[int, int] = {}
        self._hash_of: dict[int, int] = {}
        self._block_of: dict[int, int] = {}
        self._serial = 1

    @property
    def used_count(self) -> int:
        """Blocks with at least one owner."""
        return self.capacity - self.free_count

    def find(self, hashes: Sequence[int], limit: int) -> list[int]:
        """Blocks that hold the longest prefix of `hashes`, at most `limit`; takes nothing."""
        found: list[int] = []
        if not self._block_of:
            return found
        for value in hashes[:limit]:
            block = self._block_of.get(value)
            if block is None:
                break
            found.append(block)
        return found

    def idle_among(self, blocks: Iterable[int]) -> int:
        """How many of `blocks` have no owner: sharing them uses up that much free space."""
        return sum(1 for block in blocks if block not in self._owners)

    def share(self, blocks: Iterable[int]) -> None:
        """Become one more owner of found blocks."""
        for block in blocks:
            owners = self._owners.get(block, 0)
            if not owners:
                del self._free[block]
                self.free_count -= 1
            self._owners[block] = owners + 1

    def take(self, count: int) -> list[int]:
        """`count` new blocks to be remembered by hash; the caller has seen that they are free."""
        self._overwrite(count)
        first = self._serial + 1
        self._serial += count
        taken = list(range(first, first + count))
        self._owners.update(dict.fromkeys(taken, 1))
        return taken

    def take_spare(self, count: int) -> None:
        """`count` blocks that nobody will find; the caller has seen that they are free."""
        self._overwrite(count)

    def _overwrite(self, count: int) -> None:
        self.free_count -= count
        free = self._free
        while count:
            first = next(iter(free))
            here = free[first]
            if here > count:
                free[first] = here - count
                return
            del free[first]
            count -= here
            old = self._hash_of.pop(first, None)
            if old is not None:
                del self._block_of[old]
                if self._evicted is not None:
                    self._evicted(old)

    def remember(self, block: int, value: int) -> None:
        """Let a filled block be found by its hash; the first block of a hash keeps it."""
        if value not in self._block_of and block not in self._hash_of:
            self._block_of[value] = block
            self._hash_of[block] = value

    def release(self, blocks: Sequence[int], spare: int) -> None:
        """Give up ownership; the end of a sequence is evicted before its beginning."""
        if spare:
            self._add_run(spare)
        for block in reversed(blocks):
            left = self._owners[block] - 1
            if left:
                self._owners[block] = left
                continue
            del self._owners[block]
            if block in self._hash_of:
                self._free[block] = 1
                self.free_count += 1
            else:
                self._add_run(1)

    def _add_run(self, count: int) -> None:
        free = self._free
        self.free_count += count
        if free and (last := next(reversed(free))) < 0:
            free[last] += count
            return
        self._serial += 1
        free[-self._serial] = count

    def forget(self) -> None:
        """Drop all cached content that has no owner now (a reset of the prefix cache)."""
        for block in [one for one in self._hash_of if one not in self._owners]:
            del self._block_of[self._hash_of.pop(block)]
