"""A call on its way through a gateway, and the refusals that one may end with."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from capacity.simulation.book import Held
from capacity.simulation.measures import SliceFigures
from capacity.simulation.scenario import TenantSpec
from capacity.simulation.workload import Arrival
from routing.contracts.pricing import hold_nanousd
from routing.decision.types import Amounts, Reason, Refusal

NOBODY: Final = Refusal(Reason.NO_CAPACITY, "No upstream can serve this model now.", 1.0)
SHED: Final = Refusal(Reason.NO_CAPACITY, "The predicted wait is above its limit.", 1.0)
FULL: Final = Refusal(Reason.NO_CAPACITY, "Every replica has all it may have.", 1.0)
TOO_LATE: Final = Refusal(Reason.NO_CAPACITY, "It waited for longer than its limit.", 1.0)
TOO_LARGE: Final = Refusal(Reason.INVALID_REQUEST, "No replica can hold it.")
RESENT: Final = Refusal(Reason.NO_CAPACITY, "The retry budget is spent.")


@dataclass(slots=True, eq=False)
class Flight:
    """One call in its gateway. `job` is its client's, passed back untouched."""

    id: str
    arrival: Arrival
    job: Any
    figures: SliceFigures
    accepted_s: float
    amounts: Amounts
    held: Held | None = None
    attempts: int = 0
    tried: tuple[str, ...] = ()
    station: str = ""
    sent_s: float = 0.0
    uncached: int = 0
    first_s: float | None = None
    last_s: float = 0.0
    made_tokens: int = 0
    was_lost: bool = False
    is_over: bool = False


# A flight has ended: its refusal, or None when the answer is whole or was left or cut.
Ended = Callable[[Flight, Refusal | None], None]


def amounts_of(arrival: Arrival, tenant: TenantSpec | None) -> Amounts:
    """What a call holds: its bound of output, all of it at full price."""
    output = max(arrival.max_tokens, arrival.output_tokens)
    spend = hold_nanousd(tenant.price, arrival.input_tokens, output, 0) if tenant else 0
    return Amounts(arrival.input_tokens, output, spend, arrival.input_tokens + output)
