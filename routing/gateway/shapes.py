"""Sends shape rows to their stream in batches, apart from everything that matters more."""

import asyncio
from collections import deque
from functools import partial
from typing import Final

import hiredis

from routing.contracts.usage import ShapeRow, encode_shapes
from routing.store.cluster import Store
from routing.store.streams import append_shapes

BATCH_ROWS: Final = 200
FLUSH_S: Final = 0.5
MAX_WAITING_ROWS: Final = 20_000  # about 6 MB while the store is away; then the oldest go


class ShapeOutbox:
    """Rows wait here until a batch is full or `FLUSH_S` has passed; a failed batch goes again."""

    def __init__(self, store: Store) -> None:
        """Send nothing before `start`."""
        self._store = store
        self._loop = asyncio.get_running_loop()
        self._rows: deque[ShapeRow] = deque(maxlen=MAX_WAITING_ROWS)
        self._timer: asyncio.TimerHandle | None = None
        self.dropped = 0

    def start(self) -> None:
        """Begin to send."""
        self._timer = self._loop.call_later(FLUSH_S, self._turn)

    def stop(self) -> None:
        """Send what waits, then no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.flush()

    def add(self, row: ShapeRow) -> None:
        """Queue one row; when too many wait, the oldest is dropped and counted."""
        if len(self._rows) == MAX_WAITING_ROWS:
            self.dropped += 1
        self._rows.append(row)
        if len(self._rows) % BATCH_ROWS == 0:
            self.flush()

    def flush(self) -> None:
        """Send all that waits, if the store is there."""
        while self._rows and self._store.is_ready:
            batch = [self._rows.popleft() for _ in range(min(BATCH_ROWS, len(self._rows)))]
            append_shapes(self._store, encode_shapes(batch), partial(self._sent, batch))

    def _turn(self) -> None:
        self._timer = self._loop.call_later(FLUSH_S, self._turn)
        self.flush()

    def _sent(self, batch: list[ShapeRow], reply: object) -> None:
        """Unsure counts as not sent: the ledger keeps one row per request id."""
        if isinstance(reply, bytes):
            return
        if isinstance(reply, hiredis.ReplyError) or len(self._rows) + len(batch) > MAX_WAITING_ROWS:
            self.dropped += len(batch)
        else:
            self._rows.extendleft(reversed(batch))
