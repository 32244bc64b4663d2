#!/usr/bin/env python3
"""Entry point: bootstrap makes the environment, then Django's command line takes over."""

import sys

from console.supervisor import bootstrap

if __name__ == "__main__":
    bootstrap.ensure(sys.argv)

    from django.core.management import execute_from_command_line

    execute_from_command_line(sys.argv)
