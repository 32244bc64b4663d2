"""`python -m console.supervisor.prepare`: bring the database to what the code needs, once.

Schema, schedule, first operator, demo rows and the first snapshot in one process, so that one
Django start pays for all. Each step may be run again: after a failure the supervisor repeats the
whole.
"""

import os
import sys

import django
from django.core.management import call_command


def prepare(*, is_demo: bool) -> None:
    """Do every step. The operator's password stands in the credentials file before the row does."""
    django.setup()
    # Imported here: models exist only after the setup above.
    from console.accounts.services import create_user  # noqa: PLC0415
    from console.audit.rules import Actor  # noqa: PLC0415
    from console.jobs.services import ensure_schedule  # noqa: PLC0415
    from console.models import Role, User  # noqa: PLC0415
    from console.supervisor.state import State, read_json, write_json  # noqa: PLC0415
    from routing.policies.services import push_snapshot  # noqa: PLC0415

    call_command("migrate", interactive=False, verbosity=1)
    ensure_schedule()
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
    push_snapshot()


if __name__ == "__main__":
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "console.project.settings")
    prepare(is_demo="--demo" in sys.argv[1:])
