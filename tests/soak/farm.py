"""Scripted replicas that are killed and come back, and when each was in trouble."""

import asyncio
import random
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from tests.soak.kinds import MET_BURST, MET_KILL
from tests.soak.replica import BURST_S
from tests.stack import ROOT, free_port

LOOK_S = 0.05
SLACK_S = 2.0  # between what happened and when it was noticed, on a busy machine
START_S = 30.0


@dataclass(slots=True)
class Trouble:
    """A replica that could not serve, by Unix seconds. `until_s` grows until it is back."""

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
    troubles: list[Trouble] = field(default_factory=list)
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
        now_s = time.time()
        self._note(MET_BURST, number, now_s, now_s + BURST_S)

    async def keep(self) -> None:
        """Until cancelled."""
        await asyncio.gather(*(self._keep_one(number) for number in range(self.count)))

    async def _keep_one(self, number: int) -> None:
        while True:
            if self._processes[number].poll() is not None:
                await self._restart(number)
            await asyncio.sleep(LOOK_S)

    async def _restart(self, number: int) -> None:
        now_s = time.time()
        trouble = self._note(MET_KILL, number, now_s, now_s + START_S)
        await asyncio.sleep(self.draw.uniform(*self.down_s))
        end_s = time.monotonic() + START_S
        while not accepts(self.ports[number]):
            assert time.monotonic() < end_s, f"replica {number} does not come back"
            if self._processes[number].poll() is not None:  # or its port was not free yet
                self._processes[number] = self._start(number)
            await asyncio.sleep(LOOK_S)
        trouble.until_s = time.time() + SLACK_S

    def _note(self, kind: str, number: int, from_s: float, until_s: float) -> Trouble:
        name = f"p1-u{number + 1}"  # as `tests.stack.pool` names them
        self.troubles.append(Trouble(kind, name, from_s - SLACK_S, until_s + SLACK_S))
        return self.troubles[-1]

    def _start(self, number: int) -> "subprocess.Popen[bytes]":
        words = ["-m", "tests.soak.replica", str(self.ports[number]), str(self.directory)]
        return subprocess.Popen([sys.executable, *words], cwd=ROOT)

    def met(self, replica: str, from_s: float, until_s: float) -> str | None:
        """The trouble that a call met at its last replica, if any."""
        for one in self.troubles:
            if one.replica == replica and one.from_s <= until_s and one.until_s >= from_s:
                return one.kind
        return None


def accepts(port: int) -> bool:
    """Whether something listens."""
    with socket.socket() as probe:
        probe.settimeout(1.0)
        return probe.connect_ex(("127.0.0.1", port)) == 0
