"""Which commands run without Django's settings.

`up` makes what the settings need, so it cannot wait for them; neither can the commands that answer
when nothing runs. Everything else is Django's own command line.
"""

import logging
import os
import sys
from importlib import import_module

from django.core.management import execute_from_command_line
from django.core.management.base import BaseCommand

from console.supervisor.usage import COMMANDS

WITHOUT_SETTINGS = frozenset(
    {"up", "down", "status", "credentials", "engine", "test", "gateway", "collect", "bench"}
)

ONE_ANSWER = frozenset({"reconcile", "import_demand", "profile", "simulate", "replay"})


def execute(argv: list[str]) -> None:
    """Run the command that `argv` names; the process ends with its exit code."""
    if len(argv) == 3 and argv[1] == "help" and argv[2] in COMMANDS:
        argv = [argv[0], argv[2], "--help"]
    name = argv[1] if len(argv) > 1 else ""
    if name not in WITHOUT_SETTINGS:
        _execute_with_servers(argv)
        return
    command: BaseCommand = import_module(f"console.management.commands.{name}").Command()
    command.run_from_argv(argv)


def _execute_with_servers(argv: list[str]) -> None:
    """Django's own command line; a server that is away is one line instead of a traceback."""
    if argv[1:] and argv[1] in ONE_ANSWER:  # who waits for one answer reads no log of tries
        logging.getLogger("psycopg.pool").setLevel(logging.ERROR)
    try:
        execute_from_command_line(argv)
    except Exception as error:
        outage = import_module("console.outage.lost")  # needs drivers that `up` may not have yet
        lost = outage.lost_by(error)
        if lost in (None, outage.SLOW) or "--traceback" in argv:
            raise
        sys.exit(
            f"{lost.title}: nothing runs on {os.environ['HEADRACE_STATE']}, or it is still "
            "starting. Start it with `python3 manage.py up`; `python3 manage.py status` shows what "
            "runs."
        )
