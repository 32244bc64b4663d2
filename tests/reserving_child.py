"""A gateway's accounting parts in a process that kills itself at one step: `STEP URL STATE ID`."""

import asyncio
import os
import signal
import sys
from pathlib import Path

from routing.gateway.buckets import Book
from routing.gateway.journal import Journal
from routing.gateway.journal_file import OPEN
from routing.store.reservations import Reservations
from tests.accounting import gateway, tenant, until

STEPS = ("reserved", "opened", "ended", "settled")


def die(*_: object, **__: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


async def run(step: str, url: str, state: Path, request_id: str) -> None:
    if step == "reserved":
        append = Journal.append
        Journal.append = lambda self, kind, body: (  # type: ignore[method-assign]
            die() if kind == OPEN else append(self, kind, body)
        )
    if step == "settled":
        Book.told = die  # type: ignore[method-assign]
    async with gateway(url, state, "killed") as one:
        hold = await one.reserve(tenant(), request_id=request_id)
        if step == "opened":
            die()
        if step == "ended":
            Reservations.settle = lambda *_, **__: None  # type: ignore[method-assign]
        one.end(hold, 777)
        one.accountant.flush()
        if step == "ended":
            last = one.journal._appended
            await until(lambda: one.journal.written >= last)
            die()
        await asyncio.sleep(10)


if __name__ == "__main__":
    asyncio.run(run(sys.argv[1], sys.argv[2], Path(sys.argv[3]), sys.argv[4]))
