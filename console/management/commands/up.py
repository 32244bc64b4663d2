"""`manage.py up`: start everything, watch it, stop it."""

import contextlib
import os
import signal
import subprocess
import sys
from argparse import SUPPRESS, ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from capacity.drivers.base import DriverError
from capacity.drivers.vllm_install import install
from console.errors import DomainError
from console.supervisor.bootstrap import INTERRUPTED, ROOT
from console.supervisor.logs import open_log
from console.supervisor.plan import Options
from console.supervisor.state import State
from console.supervisor.up import Up

CONSOLE_PORT = 8000
GATEWAY_PORT = 8100


def default_gateways() -> int:
    """Half of the cores: the other half runs engines, console and servers on the same machine."""
    return max(1, min(4, (os.cpu_count() or 1) // 2))


class Command(BaseCommand):
    """Runs in the foreground until Ctrl-C, or in the background with `--detach`."""

    help = "Start Headrace: servers, console, gateways, workers; stop all of it on Ctrl-C."
    requires_system_checks = ()

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declare what may be chosen."""
        parser.add_argument("--state", help="state directory (default: .headrace)")
        parser.add_argument("--demo", action="store_true", help="demo tenants, pools and traffic")
        parser.add_argument(
            "--real-engine",
            action="store_true",
            help="with --demo: also a pool of a real vLLM on CPU, installed if need be",
        )
        parser.add_argument(
            "--servers", action="store_true", help="only the database and the store, for repairs"
        )
        parser.add_argument("--console-port", type=int, default=CONSOLE_PORT)
        parser.add_argument("--gateway-port", type=int, default=GATEWAY_PORT)
        parser.add_argument("--gateways", type=int, default=default_gateways(), help="processes")
        parser.add_argument("--detach", action="store_true", help="return when ready")
        parser.add_argument("--ready-handle", type=int, help=SUPPRESS)

    def handle(self, *args: Any, **options: Any) -> None:
        """Run, or start the same command in the background and wait until it is ready."""
        if options["gateways"] < 1:
            raise CommandError("--gateways must be at least 1")
        if options["real_engine"] and not options["demo"]:
            raise CommandError("--real-engine adds to a demo: give --demo too")
        if options["detach"]:
            self._detach()
            return
        run = Up(
            state=State.current(),
            options=Options(
                console_port=options["console_port"],
                gateway_port=options["gateway_port"],
                gateways=options["gateways"],
                is_demo=options["demo"],
                is_real_engine=options["real_engine"],
                is_servers_only=options["servers"],
            ),
            say=self._say,
            on_ready=lambda: self._on_ready(options["ready_handle"]),
        )
        try:
            if options["real_engine"]:
                install(ROOT, self._say)
            run.run()
        except DomainError as error:
            raise CommandError(error.message) from error
        except DriverError as error:
            raise CommandError(str(error)) from error
        except KeyboardInterrupt:
            self._say("stopped before it was ready")
            sys.exit(INTERRUPTED)

    def _say(self, line: str) -> None:
        with contextlib.suppress(OSError):  # the log's disk is full: that ends nothing
            self.stdout.write(line)
            self.stdout.flush()

    def _on_ready(self, handle: int | None) -> None:
        """In the background: from here on the log takes what would have been printed."""
        if handle is None:
            self._say("Ctrl-C stops it")
            return
        with open_log(State.current().logs / "supervisor.log") as log:
            for stream in (1, 2):
                os.dup2(log.fileno(), stream)
        os.write(handle, b"ready")
        os.close(handle)

    def _detach(self) -> None:
        """Start the supervisor in a session of its own; relay what it says until it is ready."""
        reading, writing = os.pipe()
        words = [word for word in sys.argv[1:] if word != "--detach"]
        child = subprocess.Popen(  # noqa: S603 - our own command again
            [sys.executable, str(ROOT / "manage.py"), *words, "--ready-handle", str(writing)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            pass_fds=(writing,),
            start_new_session=True,
            text=True,
        )
        os.close(writing)
        try:
            for line in child.stdout or ():
                self._say(line.rstrip("\n"))
            is_ready = bool(os.read(reading, 16))
        except KeyboardInterrupt:
            child.send_signal(signal.SIGTERM)
            child.wait()
            sys.exit(INTERRUPTED)
        if not is_ready:
            sys.exit(child.wait() or 1)
