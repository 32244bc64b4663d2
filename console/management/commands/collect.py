"""`manage.py collect`: the collector in the foreground, without the supervisor."""

import os
import sys
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand

from console.supervisor.bootstrap import ROOT


class Command(BaseCommand):
    """Becomes the collector process."""

    help = "Run the collector."
    requires_system_checks = ()

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declare what may be chosen."""
        parser.add_argument("--state", help="state directory (default: .headrace)")

    def handle(self, *args: Any, **options: Any) -> None:
        """Replace this process: the collector knows no Django."""
        os.chdir(ROOT)  # `-m` looks here
        os.execv(sys.executable, [sys.executable, "-m", "telemetry.collector"])  # noqa: S606
