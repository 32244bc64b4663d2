"""Which commands run without Django's settings.

`up` makes what the settings need, so it cannot wait for them; neither can the commands that answer
when nothing runs. Everything else is Django's own command line.
"""

from importlib import import_module

from django.core.management import execute_from_command_line
from django.core.management.base import BaseCommand

from console.supervisor.usage import COMMANDS

WITHOUT_SETTINGS = frozenset(
    {"up", "down", "status", "credentials", "engine", "test", "gateway", "collect", "bench"}
)


def execute(argv: list[str]) -> None:
    """Run the command that `argv` names; the process ends with its exit code."""
    if len(argv) == 3 and argv[1] == "help" and argv[2] in COMMANDS:
        argv = [argv[0], argv[2], "--help"]
    name = argv[1] if len(argv) > 1 else ""
    if name not in WITHOUT_SETTINGS:
        execute_from_command_line(argv)
        return
    command: BaseCommand = import_module(f"console.management.commands.{name}").Command()
    command.run_from_argv(argv)
