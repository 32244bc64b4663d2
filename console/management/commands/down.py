"""`manage.py down`: stop what `up` started, wait until all of it is gone."""

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from console.errors import DomainError
from console.supervisor.state import State
from console.supervisor.up import down


class Command(BaseCommand):
    """Stops one state's processes."""

    help = "Stop everything that runs on a state."
    requires_system_checks = ()

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declare what may be chosen."""
        parser.add_argument("--state", help="state directory (default: .headrace)")

    def handle(self, *args: Any, **options: Any) -> None:
        """Stop."""
        try:
            down(State.current(), self.stdout.write)
        except DomainError as error:
            raise CommandError(error.message) from error
