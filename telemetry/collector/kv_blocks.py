"""What an engine's KV events say, without what they carry: block hashes in, a count out.

vLLM publishes three frames: topic, an 8-byte big-endian sequence number, and a MessagePack batch
`[time, [event, ...], rank]` of maps. A stored block comes with the token ids of somebody's prompt
and the tenant's cache salt: the decoder skips both, so they never become objects of this process.
"""

from dataclasses import dataclass, field

import msgspec

SEQUENCE_BYTES = 8
BLOCKS_MAX = 131_072  # hashes kept of a replica, about 10 MB; 2 M tokens in blocks of 16
_HASH_BYTES = 8
_TAGS = ("BlockStored", "BlockRemoved", "AllBlocksCleared")


class _Event(msgspec.Struct):
    """The fields that may be read of any event; every other one is skipped."""

    type: str
    block_hashes: list[int | bytes] = []
    group_idx: int | None = None


class _Batch(msgspec.Struct, array_like=True):
    at_s: float
    events: list[_Event]


_decode = msgspec.msgpack.Decoder(_Batch).decode


class BadFrameError(Exception):
    """Frames that are no batch of KV events; the message names what is wrong, never the content."""


@dataclass(frozen=True, slots=True)
class Message:
    """One batch. `at_s` is the engine's clock, `changes` are (kind, hashes) in order."""

    sequence: int
    at_s: float
    changes: list[tuple[str, list[int]]]


def read_message(frames: list[bytes]) -> Message:
    """The batch in a message's frames. Raises `BadFrameError`."""
    if len(frames) != 3:
        raise BadFrameError(f"{len(frames)} frames instead of 3")
    if len(frames[1]) != SEQUENCE_BYTES:
        raise BadFrameError(f"a sequence number of {len(frames[1])} bytes")
    try:
        batch = _decode(frames[2])
    except (msgspec.MsgspecError, RecursionError, OverflowError) as error:
        # The decoder's own words may quote a value: only the kind of fault is told.
        raise BadFrameError(f"a batch that cannot be read ({type(error).__name__})") from None
    changes = [
        (event.type, [_hash_of(raw, event.group_idx) for raw in event.block_hashes])
        for event in batch.events
        if event.type in _TAGS  # kinds of later versions change nothing that is counted here
    ]
    return Message(int.from_bytes(frames[1], "big"), batch.at_s, changes)


def _hash_of(raw: int | bytes, group: int | None) -> int:
    """One number for a block of a KV group; a long hash is cut to its first 8 bytes."""
    value = raw if isinstance(raw, int) else int.from_bytes(raw[:_HASH_BYTES], "big")
    return value ^ (group or 0)


@dataclass(slots=True)
class BlockTable:
    """Which prefix blocks an engine holds: exact if its every event was seen, else unknown.

    `next` is the sequence number that must come now. `is_whole` is False until the engine's first
    event (or word that there is none) and while something was missed: the count is then None,
    never a guess.
    """

    next: int = 0
    at_s: float = 0.0
    is_whole: bool = False
    _blocks: set[int] = field(default_factory=set)

    @property
    def resident(self) -> int | None:
        """How many distinct blocks can be hit now; None when it is not known."""
        return len(self._blocks) if self.is_whole else None

    def is_old(self, message: Message) -> bool:
        """Whether it was applied already; an engine that restarted begins at 0, but later."""
        return message.sequence < self.next and message.at_s <= self.at_s

    def is_next(self, message: Message) -> bool:
        """Whether nothing is missing before it."""
        return message.sequence == self.next

    def apply(self, message: Message) -> None:
        """Take a message over. The caller has asked `is_next`."""
        self.next, self.at_s = message.sequence + 1, max(self.at_s, message.at_s)
        for kind, hashes in message.changes:
            if kind == "BlockStored":
                self._blocks.update(hashes)
            elif kind == "BlockRemoved":
                self._blocks.difference_update(hashes)
            else:
                self._blocks.clear()
                self.is_whole = True  # whatever was missed is gone too
        if len(self._blocks) > BLOCKS_MAX:
            self.lose()  # until the engine clears its cache or starts again

    def lose(self, next_sequence: int | None = None) -> None:
        """Something was missed, or is too much: forget the blocks, and say so."""
        self._blocks.clear()
        self.is_whole = False
        if next_sequence is not None:
            self.next = next_sequence

    def restart(self) -> None:
        """The engine's story from its first event on."""
        self._blocks.clear()
        self.next, self.is_whole = 0, True
