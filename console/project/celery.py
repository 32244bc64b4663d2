"""The Celery app of worker and beat.

Each slice's `tasks.py` is named here: Celery finds only `<app>.tasks` by itself. Beat reads its
schedule from the database (`console.jobs.schedule`).
"""

import importlib
import os
import sys
from collections.abc import Callable

from celery import Celery
from celery.signals import (
    beat_init,
    task_received,
    worker_init,
    worker_ready,
    worker_shutdown,
    worker_shutting_down,
)
from celery.worker import state
from celery.worker.consumer import Consumer
from django.conf import settings
from redis.exceptions import RedisError

from console.conditions.schema import why_not_start
from console.jobs.watch import ConsumerWatch, beat_loop
from console.project.heartbeat import Heartbeat
from routing.store.pooled import sync_client

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "console.project.settings")

app = Celery("headrace")
app.config_from_object("django.conf:settings", namespace="CELERY")

TASK_MODULES = [
    "console.jobs.tasks",
    "routing.overrides.tasks",
    "routing.policies.tasks",
    "capacity.fleet.tasks",
    "capacity.rollouts.tasks",
    "capacity.playbooks.tasks",
    "capacity.forecasts.tasks",
    "capacity.profiles.tasks",
    "capacity.reports.tasks",
    "telemetry.pools.tasks",
    "telemetry.slices.tasks",
    "telemetry.slos.tasks",
    "tenants.ledger.tasks",
    "tenants.reconcile.tasks",
    "tenants.requests.tasks",
]
app.conf.imports = TASK_MODULES
app.conf.beat_max_loop_interval = 5  # beat notices a changed schedule within this many seconds

BROKER_TIMEOUT_S = 2.0

_heartbeats: list[Heartbeat] = []


def _start(name: str, why_stuck: Callable[[], str]) -> None:
    heartbeat = Heartbeat(name, settings.REDIS_URL, why_stuck)
    _heartbeats.append(heartbeat)
    heartbeat.start()


def watch_of(consumer: Consumer) -> ConsumerWatch:
    """Watches that this worker takes what waits in its queue."""
    broker = sync_client(settings.CELERY_BROKER_URL, timeout_s=BROKER_TIMEOUT_S)
    prefix = settings.CELERY_BROKER_TRANSPORT_OPTIONS["global_keyprefix"]
    queue = f"{prefix}{app.conf.task_default_queue}"
    threads = consumer.pool.limit

    def waiting() -> int | None:
        try:
            return int(broker.llen(queue))
        except RedisError:
            return None

    watch = ConsumerWatch(waiting, has_room=lambda: len(state.reserved_requests) < threads)
    task_received.connect(lambda **_: watch.took(), weak=False)
    return watch


@worker_init.connect
@beat_init.connect
def _schema_fits(**_: object) -> None:
    """End before the first task where the schema is older than this code."""
    if line := why_not_start(os.environ["DATABASE_URL"]):
        sys.exit(line)


@worker_shutting_down.connect
def _worker_stops(**_: object) -> None:
    tasks = importlib.import_module("console.jobs.tasks")  # needs Django, which is set up by now
    tasks.stopping.set()


@worker_ready.connect
def _worker_lives(sender: Consumer, **_: object) -> None:
    _start("worker", watch_of(sender).why_stuck)


@worker_shutdown.connect
def _worker_ends(**_: object) -> None:
    while _heartbeats:
        _heartbeats.pop().stop()


@beat_init.connect
def _beat_lives(**_: object) -> None:
    _start("beat", beat_loop.why_stuck)
