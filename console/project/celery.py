"""The Celery app of worker and beat.

Each slice's `tasks.py` is named here: Celery finds only `<app>.tasks` by itself. Beat reads its
schedule from the database (`console.jobs.schedule`).
"""

import os
import sys

from celery import Celery
from celery.signals import beat_init, worker_init, worker_ready, worker_shutdown
from django.conf import settings

from console.conditions.schema import why_not_start
from console.project.heartbeat import Heartbeat

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "console.project.settings")

app = Celery("headrace")
app.config_from_object("django.conf:settings", namespace="CELERY")

TASK_MODULES = [
    "console.jobs.tasks",
    "routing.policies.tasks",
    "capacity.fleet.tasks",
    "telemetry.slices.tasks",
    "tenants.ledger.tasks",
    "tenants.reconcile.tasks",
]
app.conf.imports = TASK_MODULES
app.conf.beat_max_loop_interval = 5  # beat notices a changed schedule within this many seconds

_heartbeats: list[Heartbeat] = []


def _start(name: str) -> None:
    heartbeat = Heartbeat(name, settings.REDIS_URL)
    _heartbeats.append(heartbeat)
    heartbeat.start()


@worker_init.connect
@beat_init.connect
def _schema_fits(**_: object) -> None:
    """End before the first task where the schema is older than this code."""
    if line := why_not_start(os.environ["DATABASE_URL"]):
        sys.exit(line)


@worker_ready.connect
def _worker_lives(**_: object) -> None:
    _start("worker")


@worker_shutdown.connect
def _worker_ends(**_: object) -> None:
    while _heartbeats:
        _heartbeats.pop().stop()


@beat_init.connect
def _beat_lives(**_: object) -> None:
    _start("beat")
