"""Start the ledger writer: usage and shape streams into PostgreSQL, counters rebuilt from it."""

import signal
import threading
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand

from tenants.ledger.writer.database import Database
from tenants.ledger.writer.heartbeat import Heartbeat, Progress
from tenants.ledger.writer.process import LedgerWriter


class Command(BaseCommand):
    """Runs until SIGTERM or SIGINT, then finishes its batch and exits 0."""

    help = "Move usage from the store's streams into the ledger, exactly once."

    def handle(self, *args: Any, **options: Any) -> None:
        """Run the writer in the foreground."""
        stop, progress = threading.Event(), Progress()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: stop.set())
        heartbeat = Heartbeat(settings.REDIS_URL, progress)
        writer = LedgerWriter(
            store_url=settings.REDIS_URL,
            database=Database.from_settings(),
            stop=stop,
            progress=progress,
        )
        heartbeat.start()
        try:
            writer.run()
        finally:
            heartbeat.stop()
