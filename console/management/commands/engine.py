"""`manage.py engine`: install a real vLLM for CPU beside the product, or serve a model with it."""

import os
import re
import sys
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from capacity.drivers.base import DriverError
from capacity.drivers.vllm_env import require_environment
from capacity.drivers.vllm_foreground import serve_in_foreground
from capacity.drivers.vllm_install import Sources, install
from capacity.drivers.vllm_models import SHAPES
from capacity.drivers.vllm_serve import DEFAULT_MODEL, Serve, kv_addresses, local_model
from console.errors import DomainError
from console.supervisor import ports
from console.supervisor.bootstrap import INTERRUPTED, ROOT
from console.supervisor.state import State

STOP_S = 5  # calls in flight get this long when a person stops it
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")


class Command(BaseCommand):
    """Needs no running Headrace."""

    help = "Install a real vLLM for CPU, or serve a small local model with it."
    requires_system_checks = ()

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declare what may be chosen."""
        parser.add_argument("--state", help="state directory (default: .headrace)")
        # Not the class of this parser: Django's one takes arguments that a child has not.
        actions = parser.add_subparsers(dest="action", required=True, parser_class=ArgumentParser)
        installing = actions.add_parser("install", help="make its environment, or finish it")
        installing.add_argument(
            "--index", action="append", default=[], metavar="URL", help="an index of CPU builds"
        )
        installing.add_argument(
            "--find-links", action="append", default=[], metavar="DIR", help="a folder of wheels"
        )
        serving = actions.add_parser("serve", help="serve a local model in the foreground")
        serving.add_argument("--model", choices=sorted(SHAPES), default=DEFAULT_MODEL)
        serving.add_argument("--port", type=int, default=0, help="default: a free one")
        serving.add_argument("--name", help="served model name (default: that of the model)")
        serving.add_argument("flags", nargs="*", help="after --: more flags for vllm serve")

    def handle(self, *args: Any, **options: Any) -> None:
        """Install or serve."""
        try:
            if options["action"] == "install":
                install(ROOT, self._say, Sources(options["index"], options["find_links"]))
            else:
                sys.exit(self._serve(options))
        except (DriverError, DomainError) as error:
            raise CommandError(str(error)) from error
        except OSError as error:
            raise CommandError(f"cannot run vLLM: {error}") from error
        except KeyboardInterrupt:
            self._say("interrupted")
            sys.exit(INTERRUPTED)

    def _serve(self, options: dict[str, Any]) -> int:
        name = options["name"] or options["model"]
        if not _NAME.fullmatch(name):
            raise CommandError("--name: small letters, digits, - and _, at most 64")
        if options["port"]:
            ports.require_free(options["port"], "--port")
        state = State.current()
        state.create()
        serve = Serve(
            executable=require_environment(ROOT).executable,
            model=str(local_model(options["model"], state.root)),
            served_name=name,
            port=options["port"] or ports.choose(),
            name=f"{name}-{os.getpid()}",
            state_dir=state.root,
            shutdown_timeout_s=STOP_S,
            extra_args=options["flags"],
        )
        self._say(f"vLLM serves {name!r} on http://{ports.LOOPBACK}:{serve.port}/v1 when loaded")
        self._say(f"KV events: {kv_addresses(state.root, serve.name)['kv_events']}")
        return serve_in_foreground(serve)

    def _say(self, line: str) -> None:
        self.stdout.write(line)
        self.stdout.flush()
