"""`manage.py import_demand FILE --source NAME`: hourly demand seen elsewhere, for forecasts."""

import getpass
import gzip
from argparse import ArgumentParser
from datetime import datetime
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from capacity.forecasts.imports import forget_source, import_table
from console.audit.rules import Actor
from console.errors import DomainError


class Command(BaseCommand):
    """Reads CSV, also gzipped. The same hours again replace themselves."""

    help = "Import hourly demand from a CSV file; forecasts show it as a series of its own."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declare what may be chosen."""
        parser.add_argument("--state", help="state directory (default: .headrace)")
        parser.add_argument("file", nargs="?", help="CSV: t_s or at, requests, input_tokens, ...")
        parser.add_argument("--source", required=True, help="name of the series in forecasts")
        parser.add_argument("--model", default="", help="model of a file without that column")
        parser.add_argument(
            "--start", help="instant of t_s 0, with offset (default: the file ends now)"
        )
        parser.add_argument("--forget", action="store_true", help="delete the source's hours")

    def handle(self, *args: Any, **options: Any) -> None:
        """Import, or forget."""
        actor = Actor(user_id=None, label=f"shell: {getpass.getuser()}")
        if options["forget"]:
            count = forget_source(source=options["source"], actor=actor)
            self.stdout.write(f"{count} hours of {options['source']} deleted")
            return
        if not options["file"]:
            raise CommandError("name the file, or --forget")
        start = _instant(options["start"])
        opener = gzip.open if options["file"].endswith(".gz") else open
        try:
            with opener(options["file"], "rt", encoding="utf-8", newline="") as lines:
                count = import_table(
                    source=options["source"],
                    lines=lines,
                    start=start,
                    model=options["model"],
                    actor=actor,
                )
        except (OSError, UnicodeDecodeError, EOFError) as error:
            raise CommandError(f"cannot read {options['file']}: {error}") from error
        except DomainError as error:
            raise CommandError(f"{error.field}: {error.message} {error.hint}") from error
        self.stdout.write(f"{count} hours of {options['source']} imported")


def _instant(text: str | None) -> datetime | None:
    if not text:
        return None
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        found = None
    if found is None or found.tzinfo is None:
        raise CommandError(f"--start {text!r} is no instant with an offset")
    return found
