#!/usr/bin/env python3
"""Entry point: bootstrap makes the environment, then a command runs inside it.

Only the oldest syntax stands here, so that an old Python can still say what is wrong.
"""

import sys

if sys.version_info < (3, 11):  # noqa: UP036 - reached by whoever starts it with an old Python
    sys.exit(
        "Headrace needs Python 3.11 or newer; this is %d.%d. Start it as: python3.11 manage.py"  # noqa: UP031
        % tuple(sys.version_info[:2])
    )

from console.supervisor import bootstrap

if __name__ == "__main__":
    bootstrap.ensure(sys.argv)

    from console.supervisor.commandline import execute

    execute(sys.argv)
