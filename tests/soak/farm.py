"""Scripted replicas that are killed and come back, and when each was in trouble.

The instants are the replicas' own: each puts on record when it serves, when it begins to refuse
everything, and when it is about to be killed. So a call met a trouble only if it ran while there
was one; no allowance is made for what was noticed late.
"""

import asyncio
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from tests.soak.kinds import MET_BUSY, MET_KILL, MET_LIMITED
from tests.soak.replica import BUSY_FOR, KILLED, LIMITED_FOR, SERVES
from tests.stack import ROOT, free_port

LOOK_S = 0.05
START_S = 30.0


@dataclass(frozen=True, slots=True)
class Trouble:
    """A replica that could not serve, by the machine's monotonic clock."""

    kind: str
    replica: str
    from_s: float
    until_s: float


@dataclass(slots=True)
class Farm:
    """Replicas on fixed ports. `keep` starts again whatever has died."""

    count: int
    directory: Path
    draw: random.Random
    down_s: tuple[float, float] = (0.2, 2.0)
    ports: list[int] = field(default_factory=list)
    _processes: list["subprocess.Popen[bytes]"] = field(default_factory=list)

    def __enter__(self) -> "Farm":
        while len(self.ports) < self.count:
            if (port := free_port()) not in self.ports:
                self.ports.append(port)
        self._processes = [self._start(n) for n in range(self.count)]
        end_s = time.monotonic() + START_S
        while not all(accepts(port) for port in self.ports):
            assert time.monotonic() < end_s, "replicas do not start"
            time.sleep(LOOK_S)
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            process.kill()
            process.wait(10)

    @property
    def addresses(self) -> list[tuple[str, int]]:
        return [("127.0.0.1", port) for port in self.ports]

    @property
    def is_whole(self) -> bool:
        """Whether every replica runs and answers."""
        return all(p.poll() is None for p in self._processes) and all(map(accepts, self.ports))

    def burst(self) -> None:
        """One replica refuses everything for a while."""
        number = self.draw.randrange(self.count)
        with suppress(ProcessLookupError):
            self._processes[number].send_signal(self.draw.choice((signal.SIGUSR1, signal.SIGUSR2)))

    async def keep(self) -> None:
        """Until cancelled."""
        await asyncio.gather(*(self._keep_one(number) for number in range(self.count)))

    async def _keep_one(self, number: int) -> None:
        while True:
            if self._processes[number].poll() is not None:
                await self._restart(number)
            await asyncio.sleep(LOOK_S)

    async def _restart(self, number: int) -> None:
        await asyncio.sleep(self.draw.uniform(*self.down_s))
        end_s = time.monotonic() + START_S
        while not accepts(self.ports[number]):
            assert time.monotonic() < end_s, f"replica {number} does not come back"
            if self._processes[number].poll() is not None:  # or its port was not free yet
                self._processes[number] = self._start(number)
            await asyncio.sleep(LOOK_S)

    def _start(self, number: int) -> "subprocess.Popen[bytes]":
        words = [str(self.ports[number]), str(self.directory), str(self._record(number))]
        command = [sys.executable, "-m", "tests.soak.replica", *words]
        return subprocess.Popen(command, cwd=ROOT)

    def _record(self, number: int) -> Path:
        return self.directory / f"record-{number}"

    def troubles(self) -> list[Trouble]:
        """All of them until now, by replica and in the order of their beginning."""
        found = []
        for number in range(self.count):
            name = f"p1-u{number + 1}"  # as `tests.stack.pool` names them
            killed_at_s: float | None = None
            for line in self._record(number).read_text().splitlines():
                kind, from_s, until_s = line.split()
                if kind == KILLED:
                    killed_at_s = float(from_s)
                elif kind != SERVES:
                    found.append(Trouble(_MET[kind], name, float(from_s), float(until_s)))
                elif killed_at_s is not None:
                    found.append(Trouble(MET_KILL, name, killed_at_s, float(from_s)))
                    killed_at_s = None
            if killed_at_s is not None:
                found.append(Trouble(MET_KILL, name, killed_at_s, float("inf")))
        return found


_MET = {BUSY_FOR: MET_BUSY, LIMITED_FOR: MET_LIMITED}


def met(troubles: Iterable[Trouble], replica: str, from_s: float, until_s: float) -> list[str]:
    """Which troubles of its last replica a call has run through."""
    return [
        one.kind
        for one in troubles
        if one.replica == replica and one.from_s <= until_s and one.until_s >= from_s
    ]


def accepts(port: int) -> bool:
    """Whether something listens."""
    with socket.socket() as probe:
        probe.settimeout(1.0)
        return probe.connect_ex(("127.0.0.1", port)) == 0
