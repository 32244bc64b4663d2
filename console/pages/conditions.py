"""The installation's report, as pages and REST of this process read it."""

from django.conf import settings
from django.db import connection
from django.urls import reverse
from psycopg.conninfo import make_conninfo

from console.conditions.gather import Report, Sources, gather
from console.conditions.rules.condition import Condition
from console.web.tables import Strip


def report() -> Report:
    """What is so now; about a second at most, whatever hangs."""
    return gather(sources())


def sources() -> Sources:
    """What this process is connected to."""
    database = connection.settings_dict
    return Sources(
        state=settings.STATE_DIR,
        redis_url=settings.REDIS_URL,
        database_url=make_conninfo(
            host=database["HOST"] or None,
            port=database["PORT"] or None,
            dbname=database["NAME"],
            user=database["USER"] or None,
            password=database["PASSWORD"] or None,
        ),
    )


def strips_of(report: Report) -> list[Strip]:
    """Strips that lead to the system page."""
    return [
        _strip(condition, reverse("system"), "Open system →") for condition in report.conditions
    ]


def strips_here(report: Report) -> list[Strip]:
    """Strips of the system page itself."""
    return [_strip(condition) for condition in report.conditions]


def _strip(condition: Condition, url: str = "", action: str = "") -> Strip:
    return Strip(
        tone=condition.tone,
        word=condition.word,
        text=condition.text,
        url=url,
        action=action,
        part=condition.part,
        bound=condition.bound,
        next_step=condition.next_step,
    )
