"""`manage.py reconcile`: do holds, counters and ledger agree; `--repair` makes them agree."""

import getpass
import json
import sys
from argparse import ArgumentParser
from dataclasses import asdict
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.db import connection

from console.audit.rules import Actor
from console.errors import DomainError
from tenants.reconcile.selectors import RunView
from tenants.reconcile.services import ASKED_HOURS, reconcile


class Command(BaseCommand):
    """Exit code 0 when nothing differs (after a repair, if asked), 1 when something does."""

    help = "Compare holds, live counters and ledger; --repair corrects what differs."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declare what may be chosen."""
        parser.add_argument("--state", help="state directory (default: .headrace)")
        parser.add_argument("--json", action="store_true", help="one object on standard output")
        parser.add_argument("--repair", action="store_true", help="correct what differs, audited")
        parser.add_argument(
            "--hours", type=int, default=ASKED_HOURS, help="how far back ledger rows are looked at"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        """Print."""
        connection.ensure_connection()  # a run that cannot be written down is not begun
        actor = Actor(user_id=None, label=f"shell: {_person()}")
        try:
            run = reconcile(is_repair=options["repair"], hours=options["hours"], actor=actor)
        except DomainError as error:
            raise CommandError(error.message) from error
        if options["json"]:
            self.stdout.write(json.dumps({**asdict(run), "is_clean": run.is_clean}, default=str))
        else:
            self.stdout.write("\n".join(_lines(run)))
        if not run.is_clean:
            sys.exit(1)


def _person() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user may have no name
        return "unknown"


def _lines(run: RunView) -> list[str]:
    lines = [f"{'done' if act['is_done'] else 'LEFT'}  {act['what']}" for act in run.acts]
    for line in run.lines:
        lines.append(f"{line['count']:>6}  {line['check']}  ({line['bound']})")
        lines += [f"        {sample}" for sample in line["samples"]]
    if run.trouble:
        lines.append(f"not all was looked at: {run.trouble}")
    return lines
