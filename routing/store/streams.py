"""Appending to the streams that are not usage: slice frames and shapes. Both are bounded."""

from typing import Final

from routing.store import keys
from routing.store.client import Callback
from routing.store.cluster import Store

FRAMES_KEPT: Final = 7_200  # one gateway's two hours; an absent collector loses older seconds
SHAPE_BATCHES_KEPT: Final = 20_000  # up to 4 million rows while PostgreSQL is away


def append_frame(store: Store, frame: bytes, done: Callback | None = None) -> None:
    """Append an encoded `SliceFrame`; `done` gets the entry id, an error or no reply."""
    store.command(
        "XADD", keys.SLICE_FRAMES, "MAXLEN", "~", FRAMES_KEPT, "*", "f", frame, callback=done
    )


def append_shapes(store: Store, rows: bytes, done: Callback | None = None) -> None:
    """Append an encoded list of `ShapeRow`; `done` gets the entry id, an error or no reply."""
    store.command(
        "XADD", keys.SHAPES, "MAXLEN", "~", SHAPE_BATCHES_KEPT, "*", "s", rows, callback=done
    )
