"""KV that the accelerator gave up and that slower memory still has: CPU, NVMe, another machine.

A block enters the first tier when the accelerator evicts it, moves on to the next when a tier is
full, and leaves with the last. Loading is waited for in the step that admits the request; the copy
stays where it is.
"""

from collections import OrderedDict
from collections.abc import Sequence

from capacity.simulation.profiles import Tier


class Tiers:
    """Hashes of blocks by tier, oldest first."""

    __slots__ = ("_kept", "_load_s", "_rooms")

    def __init__(self, tiers: tuple[Tier, ...], block_tokens: int) -> None:
        """Empty tiers; `block_tokens` is what each hash stands for."""
        self._rooms = [tier.kv_tokens // block_tokens for tier in tiers]
        self._load_s = [tier.load_s_per_token * block_tokens for tier in tiers]
        self._kept: list[OrderedDict[int, None]] = [OrderedDict() for _ in tiers]

    def keep(self, value: int) -> None:
        """The accelerator has evicted the block of this hash."""
        for kept, room in zip(self._kept, self._rooms, strict=True):
            kept[value] = None
            kept.move_to_end(value)
            if len(kept) <= room:
                return
            value, _none = kept.popitem(last=False)

    def find(self, hashes: Sequence[int]) -> tuple[int, float]:
        """How many of `hashes`, from the first on, the tiers hold, and seconds to load them."""
        seconds = 0.0
        for count, value in enumerate(hashes):
            place = next((at for at, kept in enumerate(self._kept) if value in kept), None)
            if place is None:
                return count, seconds
            self._kept[place].move_to_end(value)
            seconds += self._load_s[place]
        return len(hashes), seconds
