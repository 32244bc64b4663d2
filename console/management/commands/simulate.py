"""`manage.py simulate SCENARIO`: a fleet in virtual time, by the gateway's own decisions."""

import gzip
import hashlib
import json
import signal
import sys
import time
from argparse import ArgumentParser
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec
from django.core.management.base import BaseCommand, CommandError
from django.db import DatabaseError

from capacity.profiles.selectors import named_profile
from capacity.simulation import traces
from capacity.simulation.document import (
    Document,
    DocumentError,
    TracePart,
    read_document,
    scenario_of,
    streams_of,
)
from capacity.simulation.profile_document import POOL_PREFIX, ProfileError, read_profile
from capacity.simulation.profiles import EngineProfile, UnknownProfileError
from capacity.simulation.run import Run, report_digest
from capacity.simulation.workload import Arrival, merged
from routing.contracts.usage import ShapeRow

EVENTS_BETWEEN_LOOKS: Final = 20_000  # well under a second: progress, and whether to stop
MOST_DOCUMENT_BYTES: Final = 1 << 20
PROGRESS_S: Final = 1.0
STOPPED: Final = 130
FORMS: Final = ("azure", "burstgpt", "mooncake", "arena", "servegen", "shapes")


class Command(BaseCommand):
    """Runs one scenario; the same document and traces give the same output."""

    help = "Run a scenario in virtual time and print what it shows as JSON."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declare what may be chosen."""
        parser.add_argument("scenario", type=Path, help="JSON document (docs/simulate.md)")
        parser.add_argument("--seed", type=int, help="instead of the document's")
        parser.add_argument("--until-s", type=float, help="virtual seconds, not the document's")
        parser.add_argument("--quiet", action="store_true", help="no progress on stderr")

    def handle(self, *args: Any, **options: Any) -> None:
        """Run to the end, or until SIGINT or SIGTERM: then what was seen so far, exit code 130."""
        raw = _read(options["scenario"])
        changes = {
            name: options[name] for name in ("seed", "until_s") if options.get(name) is not None
        }
        try:
            report = report_of(
                raw, options["scenario"].parent, changes=changes, is_quiet=options["quiet"]
            )
        except DocumentError as error:
            raise CommandError(f"{options['scenario']}: {error}") from error
        self.stdout.write(json.dumps(report, indent=1, sort_keys=True))
        if not report["is_whole"]:
            sys.exit(STOPPED)


def report_of(
    raw: bytes, folder: Path, *, changes: dict[str, Any], is_quiet: bool
) -> dict[str, Any]:
    """Run a document whose files are in `folder`; `is_whole` is false when it was stopped.

    Raises `DocumentError` for the document, `CommandError` for a profile or a trace that cannot be
    used.
    """
    inputs = {"scenario": hashlib.sha256(raw).hexdigest()}
    try:
        document = _changed(read_document(raw), changes)
        scenario = scenario_of(document, _profiles(document, folder, inputs))
        blocks = min(one.profile.block_tokens for one in scenario.replicas)
        streams = streams_of(document)
        streams += [_trace(part, folder, blocks, document, inputs) for part in document.traces]
        run = Run(scenario, merged(*streams), document.seed)
        is_whole, cpu_s = _drive(run, is_quiet=is_quiet)
    except traces.TraceError as error:
        raise CommandError(str(error)) from error
    report = run.report()
    report["inputs"] = inputs
    report["is_whole"] = is_whole
    report["report_digest"] = report_digest(report)  # of all above: the CPU time varies
    report["cpu_s"] = round(cpu_s, 3)
    return report


def _read(path: Path) -> bytes:
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise CommandError(f"{path} cannot be read: {error.strerror}") from error
    if len(raw) > MOST_DOCUMENT_BYTES:
        raise CommandError(f"{path} is larger than {MOST_DOCUMENT_BYTES} bytes: no scenario is")
    return raw


def _profiles(document: Document, folder: Path, inputs: dict[str, str]) -> dict[str, EngineProfile]:
    """The fleet's profiles that lie in files or with pools, their digests noted."""
    found: dict[str, EngineProfile] = {}
    for name in (name for part in document.fleet for name in part.files()):
        if name.startswith(POOL_PREFIX):
            found[name] = _of_pool(name)
            inputs[name] = hashlib.sha256(msgspec.json.encode(found[name])).hexdigest()
            continue
        raw = _read(folder / name)
        inputs[name] = hashlib.sha256(raw).hexdigest()
        try:
            found[name] = read_profile(raw)
        except ProfileError as error:
            raise CommandError(f"{folder / name}: {error}") from error
    return found


def _of_pool(name: str) -> EngineProfile:
    """The profile that holds for a pool of this installation now."""
    try:
        return named_profile(name)
    except UnknownProfileError as error:
        raise CommandError(str(error)) from error
    except DatabaseError as error:
        raise CommandError(f"{name}: the database cannot be asked: {error}") from error


def _changed(document: Document, changes: dict[str, Any]) -> Document:
    return read_document(json.dumps({**_plain(document), **changes}).encode())


def _plain(document: Document) -> dict[str, Any]:
    plain: dict[str, Any] = msgspec.to_builtins(document)
    return plain


def _drive(run: Run, *, is_quiet: bool) -> tuple[bool, float]:
    """Whether it came to its end, and the CPU seconds it took."""
    asked: list[int] = []
    before = {
        number: signal.signal(number, lambda number, _frame: asked.append(number))
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    start_s, shown_s = time.process_time(), time.monotonic()
    try:
        while run.advance(EVENTS_BETWEEN_LOOKS):
            if asked:
                return False, time.process_time() - start_s
            if not is_quiet and time.monotonic() - shown_s >= PROGRESS_S:
                shown_s = time.monotonic()
                print(f"{run.progress_ratio:.0%}  {run.jobs} requests", file=sys.stderr)
        return True, time.process_time() - start_s
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _trace(
    part: TracePart, folder: Path, blocks: int, document: Document, inputs: dict[str, str]
) -> Iterator[Arrival]:
    if part.form not in FORMS:
        raise DocumentError(f"traces: no form {part.form!r}; there are {', '.join(FORMS)}")
    lines = _lines(folder / part.file, inputs)
    if part.form == "servegen":
        if not part.lengths:
            raise DocumentError("traces: a servegen trace needs its lengths file too")
        lengths = _lines(folder / part.lengths, inputs)
        return traces.servegen(lines, lengths, document.seed, document.until_s)
    if part.form == "mooncake":
        return traces.mooncake(lines, blocks)
    if part.form == "shapes":
        return traces.shapes(_shape_rows(lines), blocks)
    readers = {"azure": traces.azure, "burstgpt": traces.burstgpt, "arena": traces.arena}
    return readers[part.form](lines)


def _lines(path: Path, inputs: dict[str, str]) -> Iterator[str]:
    """Lines of a file, plain or gzip, read as they are needed; its digest is noted at once."""
    try:
        with path.open("rb") as file:
            inputs[path.name] = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise CommandError(f"{path} cannot be read: {error.strerror}") from error
    return _text(path)


def _text(path: Path) -> Iterator[str]:
    if path.suffix == ".gz":
        with gzip.open(path, "rt") as packed:
            yield from packed
    else:
        with path.open() as file:
            yield from file


def _shape_rows(lines: Iterator[str]) -> Iterator[ShapeRow]:
    decode = msgspec.json.Decoder(ShapeRow).decode
    for number, line in enumerate(lines, 1):
        try:
            yield decode(line)
        except msgspec.MsgspecError as error:
            raise traces.TraceError(f"line {number} is no shape row: {error}") from error
