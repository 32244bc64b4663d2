"""`manage.py replay`: send a trace through a gateway at its own arrival times, or simulate it."""

import asyncio
import contextlib
import hashlib
import json
import os
import signal
import sys
import time
from argparse import ArgumentParser
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import redis
from django.conf import settings
from django.core.management.base import BaseCommand, CommandError

from capacity.simulation.document import DocumentError
from console.demo.client import GatewayAddress
from console.demo.traffic import (
    TRACE,
    Arrival,
    Caller,
    Outcome,
    Replay,
    json_line,
    looped,
    read_trace,
)
from console.management.commands.simulate import FORMS, STOPPED, report_of
from routing.contracts.process import ProcessStatus, encode_status
from routing.store import keys
from routing.store.pooled import sync_client

HEARTBEAT_S = 2.0
PROGRESS_S = 1.0


class Command(BaseCommand):
    """Replays a trace; with `--demo` until stopped, as the demo's tenants."""

    help = "Send a trace through a gateway at its own arrival times."
    requires_system_checks = ()

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declare what may be chosen."""
        parser.add_argument("trace", nargs="?", type=Path, default=TRACE)
        parser.add_argument(
            "--demo", action="store_true", help="loop until stopped, as the demo's tenants"
        )
        parser.add_argument("--key", help="API key to send with (without --demo)")
        parser.add_argument("--model", default="llama-8b")
        parser.add_argument(
            "--keep-one-in", type=int, default=1, help="thin the trace, times unchanged"
        )
        parser.add_argument(
            "--record", type=Path, help="append one JSON line a request to this file"
        )
        parser.add_argument("--gateway", default=settings.GATEWAY_URL)
        virtual = parser.add_argument_group("in virtual time (docs/simulate.md)")
        virtual.add_argument("--form", choices=FORMS, help="simulate a trace of this form")
        virtual.add_argument("--profile", default="8b-bf16-h100", help="of the simulated fleet")
        virtual.add_argument("--replicas", type=int, default=1)
        virtual.add_argument("--until-s", type=float, default=86_400.0, help="virtual seconds")
        virtual.add_argument("--seed", type=int, default=1)
        parser.add_argument("--quiet", action="store_true", help="no progress on stderr")

    def handle(self, *args: Any, **options: Any) -> None:
        """Run until the trace ends or SIGINT/SIGTERM."""
        if options["form"]:
            self._simulate(options)
            return
        with _in_one_line(options["trace"]):
            rows = read_trace(options["trace"])
        if not rows:
            raise CommandError(f"{options['trace']} holds no requests")
        callers = demo_callers() if options["demo"] else [_single_caller(options)]
        with _in_one_line("--gateway"):
            gateway = GatewayAddress.from_url(options["gateway"])
        keep = max(1, options["keep_one_in"])
        arrivals = looped(rows, keep)
        limited = arrivals if options["demo"] else (row for row in rows[::keep])
        counts: dict[str, int] = {}
        with _in_one_line(options["record"]):
            record_file = options["record"].open("a") if options["record"] else None

        def record(outcome: Outcome) -> None:
            name = str(outcome.status or outcome.error)
            counts[name] = counts.get(name, 0) + 1
            if record_file:
                record_file.write(json_line(outcome) + "\n")
                record_file.flush()

        replay = Replay(gateway, callers, record)
        is_whole = True
        try:
            is_quiet = options["quiet"] or options["demo"]
            is_whole = asyncio.run(
                _supervised(replay, limited, is_demo=options["demo"], is_quiet=is_quiet)
            )
        finally:
            if record_file:
                record_file.close()
        with options["trace"].open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        result: dict[str, Any] = {"sent": replay.sent, "dropped": replay.dropped, "answers": counts}
        result |= {"inputs": {options["trace"].name: digest}, "is_whole": is_whole}
        self.stdout.write(json.dumps(result))
        if not is_whole and not options["demo"]:  # the demo's replay ends by being stopped
            sys.exit(STOPPED)

    def _simulate(self, options: dict[str, Any]) -> None:
        """The trace against a fleet in virtual time: `simulate` with a document of its own."""
        path = options["trace"].resolve()
        document = {
            "until_s": options["until_s"],
            "seed": options["seed"],
            "fleet": [{"profile": options["profile"], "replicas": options["replicas"]}],
            "traces": [{"form": options["form"], "file": path.name}],
        }
        raw = json.dumps(document, sort_keys=True).encode()
        try:
            report = report_of(raw, path.parent, changes={}, is_quiet=options["quiet"])
        except DocumentError as error:
            raise CommandError(str(error)) from error
        self.stdout.write(json.dumps(report, indent=1, sort_keys=True))
        if not report["is_whole"]:
            sys.exit(STOPPED)


def demo_callers() -> list[Caller]:
    """The demo's tenants with their keys, from the 0600 credentials file.

    Raises CommandError when the demo was not seeded in this state.
    """
    path = settings.STATE_DIR / "credentials.json"
    try:
        rows = json.loads(path.read_text())["demo_callers"]
    except (OSError, KeyError, ValueError) as error:
        raise CommandError(f"no demo keys in {path}: start with `up --demo`") from error
    return [Caller(**row) for row in rows]


@contextlib.contextmanager
def _in_one_line(what: object) -> Iterator[None]:
    """A file or address that cannot be used ends the command, without a traceback."""
    try:
        yield
    except OSError as error:
        raise CommandError(f"{what} cannot be opened: {error.strerror}") from error
    except ValueError as error:
        raise CommandError(f"{what}: {error}") from error


def _single_caller(options: dict[str, Any]) -> Caller:
    if not options["key"]:
        raise CommandError(
            "--key is needed without --demo: `manage.py credentials` lists demo keys"
        )
    return Caller(name="replay", secret=options["key"], model=options["model"])


async def _supervised(
    replay: Replay, arrivals: Iterable[Arrival], *, is_demo: bool, is_quiet: bool
) -> bool:
    """Send until the end, then True, or until a signal; what is in flight is waited for."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for sign in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(sign, stop.set)
    beside = [asyncio.create_task(_heartbeat(replay))] if is_demo else []
    if not is_quiet:
        beside.append(asyncio.create_task(_progress(replay)))
    await replay.run(arrivals, stop)
    for task in beside:
        task.cancel()
    await asyncio.gather(*beside, return_exceptions=True)
    return not stop.is_set()


async def _progress(replay: Replay) -> None:
    while True:
        await asyncio.sleep(PROGRESS_S)
        print(f"{replay.sent} sent, {replay.dropped} dropped", file=sys.stderr)


async def _heartbeat(replay: Replay) -> None:
    """Tell `status` that traffic runs; the store being away must not stop it."""
    client = sync_client(settings.REDIS_URL)
    started_at_ms = int(time.time() * 1000)
    field = f"traffic:{os.getpid()}"
    try:
        while True:
            status = ProcessStatus(
                name="traffic",
                pid=os.getpid(),
                started_at_ms=started_at_ms,
                at_ms=int(time.time() * 1000),
                note=f"{replay.sent} sent, {replay.dropped} dropped",
            )
            with contextlib.suppress(OSError, redis.RedisError):
                await asyncio.to_thread(client.hset, keys.PROCESSES, field, encode_status(status))
            await asyncio.sleep(HEARTBEAT_S)
    finally:  # one that ended as it should is not missed
        with contextlib.suppress(OSError, redis.RedisError):
            client.hdel(keys.PROCESSES, field)
