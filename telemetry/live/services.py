"""What a live socket leaves in the audit trail."""

from django.db import transaction

from console.audit.rules import Actor
from console.audit.services import record
from telemetry.live.rules import QUERY_CHARS_MAX, Access


@transaction.atomic
def record_denied(*, access: Access, channel: str, query: str) -> None:
    """Note that a person asked for rows that are not theirs to see."""
    record(
        actor=Actor(user_id=access.user_id, label=access.username),
        act="live.denied",
        object_type="channel",
        object_id=channel[:QUERY_CHARS_MAX],
        reason="The subscription asks for more than the person may see.",
        after={"query": query[:QUERY_CHARS_MAX]},
    )
