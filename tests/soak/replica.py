"""`python -m tests.soak.replica PORT DIRECTORY`: a scripted replica that can be killed.

It answers chat completions, streamed and whole, and does wrong what a call's tag asks for. Faults
that show only once leave a file per tag in DIRECTORY, so that the next replica knows. SIGUSR1 makes
it answer 503 "currently busy", SIGUSR2 429, to everything for `BURST_S`.
"""

import asyncio
import json
import os
import signal
import socket
import struct
import sys
import time
from contextlib import suppress
from pathlib import Path

from tests.soak import kinds
from tests.soak.kinds import KILLS, KINDS, LEAVES, PLAIN, TAG
from tests.upstream import LAST, answer, event, framed, head, sse_head, stream_events, usage

BURST_S = 1.5
# What it puts on record.
KILLED, SERVES, BUSY_FOR, LIMITED_FOR = "killed", "serves", "busy", "limited"
PIECES = ("he", "llo", " the", "re", " you")
PROMPT_TOKENS, OUTPUT_TOKENS = 12, len(PIECES)
GAP_S = 0.004
LEFT_GAP_S = 0.5  # between the pieces of an answer whose caller leaves half-way
SEEN_S = 0.1  # until what was sent has been read, before the connection is reset
_JSON = ("content-type", "application/json")
# A millisecond: a fault that one call asked for must not keep its replica from the others.
_SOON = ("retry-after-ms", "1")


def whole(body: object, status: int = 200, *more: tuple[str, str]) -> bytes:
    raw = json.dumps(body).encode()
    return head(status, [_JSON, ("content-length", str(len(raw))), *more]) + raw


USAGE = usage(PROMPT_TOKENS, OUTPUT_TOKENS, cached=4)
ANSWER = whole(answer("".join(PIECES), USAGE))
EVENTS = [framed(one) for one in stream_events(PIECES, USAGE)]
START = sse_head().data
BEGUN = START + b"".join(EVENTS[:4])  # the role and three pieces
BUSY = {"error": {"message": "The server is currently busy", "code": 503}}
RATE = {"error": {"message": "Slow down", "code": 429}}
DIED = framed(event({"error": {"message": "engine died", "code": 500}}))
REFUSALS = {
    "busy": whole(BUSY, 503, _SOON),
    "limited": whole(RATE, 429, _SOON),
    "error_first": START + DIED + LAST,
}
MODELS = whole({"object": "list", "data": [{"id": "alpha-8b"}]})


class Replica:
    """Serves until it is killed."""

    def __init__(self, directory: Path, record: Path) -> None:
        self._directory = directory
        self._record = record
        self._burst: tuple[float, bytes] = (0.0, b"")

    def note(self, kind: str, seconds: float = 0.0) -> float:
        """Put an instant of the machine's monotonic clock on record, and the one so much later."""
        now_s = time.monotonic()
        with self._record.open("a") as out:
            out.write(f"{kind} {now_s!r} {now_s + seconds!r}\n")
        return now_s + seconds

    def burst(self, kind: str, refusal: bytes) -> None:
        self._burst = (self.note(kind, BURST_S), refusal)

    def die(self) -> None:
        """At once, as by the kernel: nothing is ended well. Nobody has met it before this."""
        self.note(KILLED)
        os.kill(os.getpid(), signal.SIGKILL)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            while await self._one(reader, writer):
                pass
        writer.close()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        raw = await reader.readuntil(b"\r\n\r\n")
        if raw.startswith(b"GET"):
            writer.write(MODELS)
            return True
        at = raw.lower().index(b"content-length:")
        body = await reader.readexactly(int(raw[at + 15 : raw.index(b"\r", at)]))
        until_s, refusal = self._burst
        if time.monotonic() < until_s:
            writer.write(refusal)
            return True
        return await self._play(self._fault(body), b'"stream":true' in body, reader, writer)

    def _fault(self, body: bytes) -> str:
        found = TAG.search(body)
        if found is None:
            return PLAIN
        name = found[1].decode()
        if KINDS[name].once or name == KILLS:
            try:
                (self._directory / f"{name}-{found[2].decode()}").touch(exist_ok=False)
            except FileExistsError:
                return PLAIN
        return name

    async def _play(
        self,
        fault: str,
        is_stream: bool,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> bool:
        """Whether the connection goes on."""
        shown = fault.removesuffix("_once").removesuffix("_always")
        if (refusal := REFUSALS.get(shown)) is not None:
            writer.write(refusal)
            return True
        if shown == kinds.KILLS_FIRST:
            self.die()
        if shown == "reset":
            return _reset(writer)
        if shown == "stall":
            return await _hang(reader)
        if shown == "cut_body":
            writer.write(ANSWER[:-10])
            return False
        if shown.endswith("in_stream") or shown == KILLS:
            writer.write(BEGUN)
            return await self._spoil(shown, reader, writer)
        return await _serve_well(is_stream, writer, LEFT_GAP_S if fault == LEAVES else GAP_S)

    async def _spoil(
        self, fault: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        if fault == "stall_in_stream":
            return await _hang(reader)
        if fault == "error_in_stream":
            writer.write(DIED + LAST)
            return True
        await asyncio.sleep(SEEN_S)
        if fault == KILLS:
            self.die()
        return _reset(writer) if fault == "reset_in_stream" else False


async def _serve_well(is_stream: bool, writer: asyncio.StreamWriter, gap_s: float) -> bool:
    if not is_stream:
        await asyncio.sleep(gap_s)
        writer.write(ANSWER)
        return True
    writer.write(START + EVENTS[0])
    for one in EVENTS[1:]:
        await asyncio.sleep(gap_s)
        if writer.is_closing():
            return False
        writer.write(one)
    writer.write(LAST)
    await writer.drain()
    return True


async def _hang(reader: asyncio.StreamReader) -> bool:
    """Say nothing until the gateway has given it up."""
    await reader.read()
    return False


def _reset(writer: asyncio.StreamWriter) -> bool:
    sock = writer.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
    return False


async def main(port: int, directory: Path, record: Path) -> None:
    replica = Replica(directory, record)
    loop = asyncio.get_running_loop()
    # Without a hint: the gateway leaves this replica alone for as long as it does by itself.
    loop.add_signal_handler(signal.SIGUSR1, replica.burst, BUSY_FOR, whole(BUSY, 503))
    loop.add_signal_handler(signal.SIGUSR2, replica.burst, LIMITED_FOR, whole(RATE, 429))
    server = await asyncio.start_server(replica.serve, "127.0.0.1", port, backlog=512)
    replica.note(SERVES)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3])))
