"""Why a try that was sent has failed: a deadline that passed, or what its stream said."""

from routing.decision.deadlines import Deadline, Passed, passed
from routing.decision.retry import Kind, Verdict, judge_cut_off, judge_event
from routing.decision.types import Refusal
from routing.gateway.dialects.failure import error_code, error_message
from routing.gateway.exchange import Exchange
from routing.gateway.sse import Fault, SseScanner


def overdue(
    exchange: Exchange, now_s: float, started_s: float, silent_s: float | None
) -> Passed | None:
    """Which deadline of a request has passed, if any.

    Monotonic seconds: its try started at `started_s` and has been silent for `silent_s` since its
    last token (None: it gave none yet).
    """
    return passed(
        exchange.deadlines,
        whole_s=now_s - exchange.arrived_s,
        try_s=now_s - started_s,
        silent_s=silent_s,
        output_bound=0 if exchange.call.is_stream else exchange.estimate.amounts.output_tokens,
    )


def of_deadline(exchange: Exchange, found: Passed, message: str) -> Verdict:
    """A passed deadline; the replica is LOST unless it was the request's own time, in all."""
    refusal = Refusal(found.reason, message, limit=found.deadline.value)
    if found.deadline is not Deadline.TOTAL:
        return Verdict(Kind.LOST, refusal)
    # Silent for a whole class's time is the replica's doing; a caller's own time is not.
    is_full = exchange.deadlines is exchange.snapshot.policy.classes.get(exchange.work_class)
    return Verdict(Kind.OVER, refusal, counts=is_full)


def of_stream(scanner: SseScanner, *, has_output: bool, is_draining: bool) -> Verdict:
    """A stream that was cut off, or that ended with an error event."""
    if scanner.fault is Fault.CUT_OFF:
        return judge_cut_off(has_output=has_output)
    return judge_event(
        error_code(scanner.error), error_message(scanner.error), is_draining=is_draining
    )
