"""`manage.py credentials`: what a person needs to sign in and to call the gateway."""

import json
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from console.errors import DomainError
from console.supervisor.state import State, read_json


class Command(BaseCommand):
    """Prints the 0600 file; whoever can read that file may see this."""

    help = "Print the operator's password and the demo keys."
    requires_system_checks = ()

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declare what may be chosen."""
        parser.add_argument("--state", help="state directory (default: .headrace)")

    def handle(self, *args: Any, **options: Any) -> None:
        """Print."""
        state = State.current()
        try:
            credentials = read_json(state.credentials)
        except DomainError as error:
            raise CommandError(error.message) from error
        if not credentials:
            raise CommandError(f"no credentials in {state.root}: run `manage.py up` first")
        self.stdout.write(json.dumps(credentials, indent=1))
