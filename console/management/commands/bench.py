"""`manage.py bench NAME`: run a benchmark, print ratios against a baseline of the same call."""

import json
import sys
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from capacity.simulation.probing import TooLittleError
from console.benchmarks import admission, fidelity, gateway, simulate
from console.benchmarks.live_fidelity import Limits, live_fidelity
from console.benchmarks.probe import ProbeError

BENCHMARKS = {"admission": admission.run, "gateway": gateway.run, "simulate": simulate.run}

LONGEST_RUN_S = 600.0


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
        parser.add_argument("--engine", help="with --fidelity: against this http://host:port too")
        parser.add_argument("--model", default="", help="with --engine: if it serves several")
        parser.add_argument("--key", default="", help="with --engine: API key")
        parser.add_argument("--token-budget", type=int, default=2048, help="of the engine")
        parser.add_argument("--seats", type=int, default=256, help="of the engine")
        parser.add_argument("--seconds", type=float, default=30.0, help="of each run (30)")

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
        if options["engine"]:
            if not 1 <= options["seconds"] <= LONGEST_RUN_S:
                raise CommandError(f"--seconds: from 1 to {LONGEST_RUN_S:.0f}")
            try:
                found["engine"] = live_fidelity(
                    options["engine"],
                    model=options["model"],
                    key=options["key"],
                    limits=Limits(options["token_budget"], options["seats"], options["seconds"]),
                    progress=lambda text: print(text, file=sys.stderr),
                )
            except (ProbeError, TooLittleError) as error:
                raise CommandError(f"{options['engine']}: {error}") from error
        self.stdout.write(json.dumps(found, indent=1))
        if not all(one["holds"] for one in found.values()):
            sys.exit(1)
