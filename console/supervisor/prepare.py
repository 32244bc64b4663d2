"""`python -m console.supervisor.prepare`: check the code, and bring the database to what it needs.

Schema, schedule, first operator, demo rows and the first snapshot in one process, so that one
Django start pays for all. Each step may be run again: after a failure the supervisor repeats the
whole. Killed inside a migration, PostgreSQL takes that one back.
"""

import os
import sys
import threading
import time

import django
from django.core.management import call_command

from console.supervisor.proc import die_with_parent

_LOCK = 0x4852_5250  # "HRRP": one preparation at a time, from whatever machine
ALONE_WAIT_S = 120.0  # a migration of a large table


def prepare(*, is_demo: bool, is_real_engine: bool = False) -> None:
    """Do every step. The operator's password stands in the credentials file before the row does."""
    django.setup()
    # Imported here: models exist only after the setup above.
    from capacity.playbooks.services import ensure_shipped  # noqa: PLC0415
    from console.accounts.services import create_user  # noqa: PLC0415
    from console.audit.rules import Actor  # noqa: PLC0415
    from console.demo.real_engine import rest_real_engine, seed_real_engine  # noqa: PLC0415
    from console.jobs.services import ensure_schedule  # noqa: PLC0415
    from console.models import Role, User  # noqa: PLC0415
    from console.supervisor.state import State, read_json, write_json  # noqa: PLC0415
    from routing.policies.services import push_snapshot  # noqa: PLC0415

    check()
    migrate()
    ensure_schedule()
    ensure_shipped()
    state = State.current()
    credentials = read_json(state.credentials)
    operator = credentials["operator"]
    if not User.objects.filter(username=operator["username"]).exists():
        create_user(
            username=operator["username"],
            email=operator["email"],
            password=operator["password"],
            role=Role.ADMIN,
            actor=Actor(user_id=None, label="first start"),
        )
    if is_demo:
        from console.demo.seed import seed_demo  # noqa: PLC0415

        write_json(state.credentials, {**credentials, **seed_demo(credentials)})
    if is_real_engine:
        seed_real_engine()
    else:
        rest_real_engine()
    push_snapshot()


def check() -> None:
    """Django's system checks, here for all that is started. Ends the process with one line."""
    from django.core.checks import run_checks  # noqa: PLC0415

    for fault in run_checks():
        if fault.is_serious():
            sys.exit(" ".join(f"{fault.id}: {fault.msg} {fault.hint or ''}".split()))


def migrate() -> None:
    """Apply what is missing. Ends the process with one line when code and database do not fit."""
    from django.db import DatabaseError  # noqa: PLC0415

    from console.conditions.database_probe import ask_database  # noqa: PLC0415
    from console.conditions.schema import why_not_prepare  # noqa: PLC0415

    _wait_alone()
    if line := why_not_prepare(ask_database(os.environ["DATABASE_URL"])):
        sys.exit(line)
    try:
        call_command("migrate", interactive=False, verbosity=1)
    except DatabaseError as error:
        said = " ".join(str(error).split("\n")[0].split())
        sys.exit(
            f"migration {_next_migration()} fails: {said}: repair the database, or restore a "
            "backup (docs/operate.md, Schema)"
        )


def _wait_alone() -> None:
    """Hold the preparation of this database, for as long as this process lives."""
    from django.db import connection  # noqa: PLC0415

    give_up_s = time.monotonic() + ALONE_WAIT_S
    while True:
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_try_advisory_lock(%s)", [_LOCK])
            if cursor.fetchone()[0]:
                return
        if time.monotonic() > give_up_s:
            sys.exit(f"another process has prepared this database for {ALONE_WAIT_S:.0f} s: wait")
        threading.Event().wait(1.0)


def _next_migration() -> str:
    from django.db import connection  # noqa: PLC0415
    from django.db.migrations.executor import MigrationExecutor  # noqa: PLC0415

    executor = MigrationExecutor(connection)
    plan = executor.migration_plan(executor.loader.graph.leaf_nodes())
    return f"{plan[0][0].app_label}.{plan[0][0].name}" if plan else "(unknown)"


if __name__ == "__main__":
    die_with_parent()
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "console.project.settings")
    prepare(
        is_demo="--demo" in sys.argv[1:],
        is_real_engine="--real-engine" in sys.argv[1:],
    )
