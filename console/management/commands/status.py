"""`manage.py status`: what is degraded, and each process with readiness, lag, version and cause."""

import json
import sys
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from console.errors import DomainError
from console.supervisor.answer import collect, table
from console.supervisor.state import State


class Command(BaseCommand):
    """Exit code 0: every process is ready and no condition is bad. 1: not so, or nothing runs."""

    help = "Show what runs on a state and what is degraded; exit code 0 only if all of it is ready."
    requires_system_checks = ()

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declare what may be chosen."""
        parser.add_argument("--state", help="state directory (default: .headrace)")
        parser.add_argument("--json", action="store_true", help="one object on standard output")

    def handle(self, *args: Any, **options: Any) -> None:
        """Print."""
        try:
            answer = collect(State.current())
        except DomainError as error:
            raise CommandError(error.message) from error
        if options["json"]:
            self.stdout.write(json.dumps(answer, indent=1))
        else:
            self.stdout.write("\n".join(table(answer)))
        if not answer["is_ready"]:
            sys.exit(1)
