"""The three times of a request, each its own error: to the first token, between tokens, in all."""

from enum import StrEnum
from typing import Final, NamedTuple

from routing.contracts.snapshot import ClassPolicy
from routing.decision.types import Reason

# A whole answer shows nothing until its end; it may take the first-token limit plus this for each
# token of its output bound.
WHOLE_S_PER_TOKEN: Final = 0.1


class Deadline(StrEnum):
    """Names of the policy's fields."""

    FIRST_TOKEN = "first_token_s"  # noqa: S105 - tokens of text
    BETWEEN_TOKENS = "between_tokens_s"
    TOTAL = "total_s"


class Passed(NamedTuple):
    """A deadline that has passed. The total is the request's own time, no fault of a replica."""

    deadline: Deadline
    reason: Reason
    message: str


def passed(
    limits: ClassPolicy, *, whole_s: float, try_s: float, silent_s: float | None, output_bound: int
) -> Passed | None:
    """Which deadline has passed, if any.

    `whole_s` since the request came, `try_s` since it was sent to this replica, `silent_s` since
    its last token (None: none yet, 0 while the caller reads too slowly); `output_bound` is what an
    answer that is not streamed may hold, 0 for a stream.
    """
    if whole_s > limits.total_s:
        text = f"The request took longer than its {limits.total_s:g} s in all"
        return Passed(Deadline.TOTAL, Reason.DEADLINE_EXCEEDED, text)
    if silent_s is not None:
        if silent_s <= limits.between_tokens_s:
            return None
        text = f"The upstream fell silent between tokens for {limits.between_tokens_s:g} s"
        return Passed(Deadline.BETWEEN_TOKENS, Reason.UPSTREAM_TIMEOUT, text)
    bound_s = limits.first_token_s + output_bound * WHOLE_S_PER_TOKEN
    if try_s <= bound_s:
        return None
    text = f"The upstream gave no token within {bound_s:g} s"
    return Passed(Deadline.FIRST_TOKEN, Reason.UPSTREAM_TIMEOUT, text)
