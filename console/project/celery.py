"""The Celery app.

Each slice's `tasks.py` is named here: Celery finds only `<app>.tasks` by itself.
"""

import os

from celery import Celery

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "console.project.settings")

app = Celery("headrace")
app.config_from_object("django.conf:settings", namespace="CELERY")

TASK_MODULES: list[str] = []
app.conf.imports = TASK_MODULES
