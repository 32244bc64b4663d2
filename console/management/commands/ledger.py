"""Start the ledger writer: usage and shape streams into PostgreSQL, counters rebuilt from it."""

import os
import signal
import threading
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError

from console.conditions.schema import why_not_start
from tenants.ledger.writer.heartbeat import Heartbeat
from tenants.ledger.writer.lanes import Lanes


class Command(BaseCommand):
    """Runs until SIGTERM or SIGINT, then finishes its batch and exits 0."""

    help = "Move usage from the store's streams into the ledger, exactly once."
    requires_system_checks = ()

    def handle(self, *args: Any, **options: Any) -> None:
        """Run the writer in the foreground."""
        if line := why_not_start(os.environ["DATABASE_URL"]):
            raise CommandError(line)
        stop = threading.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: stop.set())
        lanes = Lanes(settings.REDIS_URL, stop)
        heartbeat = Heartbeat(settings.REDIS_URL, lanes.progress)
        heartbeat.start()
        try:
            lanes.run()
        finally:
            heartbeat.stop()
