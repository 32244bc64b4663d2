"""`manage.py status`: each process, its readiness, restarts, and which snapshot gateways run."""

import json
import sys
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from console.errors import DomainError
from console.supervisor.state import State
from console.supervisor.status import collect, now, table


class Command(BaseCommand):
    """Exit code 0 when everything is ready, 1 when not."""

    help = "Show what runs on a state; exit code 0 only if all of it is ready."
    requires_system_checks = ()

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declare what may be chosen."""
        parser.add_argument("--state", help="state directory (default: .headrace)")
        parser.add_argument("--json", action="store_true", help="one object on standard output")

    def handle(self, *args: Any, **options: Any) -> None:
        """Print."""
        try:
            answer = collect(State.current(), now())
        except DomainError as error:
            raise CommandError(error.message) from error
        if options["json"]:
            self.stdout.write(json.dumps(answer, indent=1))
        else:
            self.stdout.write("\n".join(table(answer)))
        if not answer["is_ready"]:
            sys.exit(1)
