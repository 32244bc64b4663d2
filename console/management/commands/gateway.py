"""`manage.py gateway`: N gateway processes on one port, without the supervisor."""

import os
import signal
import sys
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from console.errors import DomainError
from console.supervisor.plan import Options, gateways
from console.supervisor.processes import Supervisor
from console.supervisor.state import State

READY_WAIT_S = 60.0


class Command(BaseCommand):
    """For hosts that run gateways only; stops on Ctrl-C or SIGTERM after draining."""

    help = "Run gateway processes that share a port."
    requires_system_checks = ()

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declare what may be chosen."""
        parser.add_argument("--state", help="state directory (default: .headrace)")
        parser.add_argument("--gateway-port", type=int, default=8100)
        parser.add_argument("--gateways", type=int, default=os.cpu_count() or 1)

    def handle(self, *args: Any, **options: Any) -> None:
        """Start, watch, stop."""
        state = State.current()
        plan = Options(
            console_port=0,
            gateway_port=options["gateway_port"],
            gateways=options["gateways"],
            is_demo=False,
        )
        supervisor = Supervisor(logs=state.logs, changed=lambda: None, say=self.stdout.write)
        try:
            state.create()
            with supervisor.signals():
                try:
                    supervisor.start(gateways(plan, os.environ), READY_WAIT_S)
                    self.stdout.write(f"{options['gateways']} gateways ready")
                    supervisor.run()
                finally:
                    supervisor.stop()
        except DomainError as error:
            raise CommandError(error.message) from error
        except KeyboardInterrupt:
            sys.exit(128 + signal.SIGINT)
