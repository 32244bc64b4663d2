"""`manage.py bench NAME`: run a benchmark, print ratios against a baseline of the same call."""

import json
import sys
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from console.benchmarks import admission, fidelity, gateway, simulate

BENCHMARKS = {"admission": admission.run, "gateway": gateway.run, "simulate": simulate.run}


class Command(BaseCommand):
    """Runs one benchmark by name, on servers of its own: it needs no state and no settings."""

    help = "Run a benchmark; prints ratios against a baseline measured in the same call."
    requires_system_checks = ()

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declare what may be chosen."""
        parser.add_argument("name", choices=sorted(BENCHMARKS))
        parser.add_argument("--quick", action="store_true", help="under a minute, for CI")
        parser.add_argument("--json", action="store_true", help="one object of named figures")
        parser.add_argument(
            "--fidelity", action="store_true", help="with simulate: errors against measurements"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        """Run and print."""
        if options["fidelity"]:
            self._fidelity(options)
            return
        figures = BENCHMARKS[options["name"]](is_quick=options["quick"])
        if options["json"]:
            self.stdout.write(json.dumps({figure.name: figure.as_json() for figure in figures}))
            return
        for figure in figures:
            self.stdout.write(figure.line())

    def _fidelity(self, options: dict[str, Any]) -> None:
        """One JSON object; exit code 1 when a bound does not hold."""
        if options["name"] != "simulate":
            raise CommandError("--fidelity belongs to: bench simulate")
        found = {"silicon": fidelity.silicon_fidelity(fidelity.silicon_rows())}
        self.stdout.write(json.dumps(found, indent=1))
        if not all(one["holds"] for one in found.values()):
            sys.exit(1)
