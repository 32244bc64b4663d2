"""What an operator may correct, and by how much."""

from console.errors import InvalidInput
from console.web import units
from tenants.ledger.rules.booking import LATE
from tenants.ledger.rules.lines import MAX_AMOUNT

MAX_REASON_CHARS = 64
MAX_NOTE_CHARS = 200


def check_adjustment(*, reason: str, note: str, spend_nanousd: int, net_nanousd: int) -> None:
    """Refuse what cannot be booked; `net_nanousd` is what the request costs so far.

    Raises `InvalidInput`. A request never costs less than nothing: its counter would fall below
    what other requests have used.
    """
    if not 0 < len(reason) <= MAX_REASON_CHARS:
        raise InvalidInput(
            f"Give a reason of at most {MAX_REASON_CHARS} characters.", field="reason"
        )
    if reason == LATE:
        raise InvalidInput(
            f"'{LATE}' is the ledger writer's own reason.", field="reason", hint="Name yours."
        )
    if len(note) > MAX_NOTE_CHARS:
        raise InvalidInput(f"A note has at most {MAX_NOTE_CHARS} characters.", field="note")
    if spend_nanousd == 0 or abs(spend_nanousd) > MAX_AMOUNT:
        raise InvalidInput(
            f"The amount must not be zero, nor beyond {units.usd(MAX_AMOUNT)} USD either way.",
            field="spend_nanousd",
        )
    if net_nanousd + spend_nanousd < 0:
        raise InvalidInput(
            "The request would cost less than nothing.",
            field="spend_nanousd",
            hint=f"At most {units.usd(net_nanousd)} USD can be taken back.",
        )
