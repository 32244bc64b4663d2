"""When another model may answer a request: what failed, and whether there is room elsewhere."""

from collections.abc import Collection
from typing import Final

from routing.contracts.enums import FallbackWhen
from routing.decision.select import Choice
from routing.decision.types import Reason

_BY_REASON: Final = {
    Reason.NO_CAPACITY: FallbackWhen.NO_CAPACITY,
    Reason.MODEL_UNAVAILABLE: FallbackWhen.NO_CAPACITY,
    Reason.UPSTREAM_RATE_LIMITED: FallbackWhen.NO_CAPACITY,
    Reason.UPSTREAM_ERROR: FallbackWhen.UPSTREAM_ERROR,
    Reason.UPSTREAM_TIMEOUT: FallbackWhen.UPSTREAM_TIMEOUT,
}


def falls_back(
    when: Collection[str], reason: Reason, *, attempts: int, max_attempts: int, has_output: bool
) -> bool:
    """Whether a failure for `reason` lets a fallback be tried: only before any output."""
    found = _BY_REASON.get(reason)
    return not has_output and attempts < max_attempts and found is not None and found in when


def has_room(choice: Choice) -> bool:
    """Whether the endpoint could serve by every rule, not merely as the least bad one.

    A fallback has its own work to do: it is not pushed over its limits for another model's.
    """
    return any(one.candidate is choice.candidate and one.why is None for one in choice.looked)
