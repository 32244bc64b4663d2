"""What a request is charged when its gateway is lost before it could say what was used."""

from typing import Final

import msgspec

from routing.contracts.enums import RequestStatus, UsageSource
from routing.contracts.pricing import spend_nanousd
from routing.contracts.usage import HoldInfo, UsageEvent

GATEWAY_LOST: Final = "gateway_lost"
NOT_SETTLED: Final = "not_settled"


def lost_event(
    info: HoldInfo, *, out_so_far: int, elapsed_s: float, ended_at_ms: int
) -> UsageEvent:
    """The usage row of a lost request: estimated, never zero, never above its hold.

    The held input, plus `out_so_far` tokens of the last sign of life, plus what `elapsed_s` since
    then may have produced at the expected pace. The true figures, should they turn up, become an
    adjustment. A use of a resource that nobody settled in time costs what was held for it.
    """
    event = info.event
    if event.units:
        return msgspec.structs.replace(
            event,
            status=RequestStatus.INCOMPLETE,
            usage_source=UsageSource.ESTIMATED,
            ended_at_ms=max(ended_at_ms, event.started_at_ms),
            spend_nanousd=event.held_nanousd,
            error_code=NOT_SETTLED,
        )
    since_tokens = int(elapsed_s / info.itl_s) if info.itl_s > 0 else 0
    output_tokens = min(event.held_output_tokens, max(out_so_far, 0) + max(since_tokens, 0))
    spend = spend_nanousd(
        info.price, event.held_input_tokens, 0, output_tokens, images=event.images
    )
    return msgspec.structs.replace(
        event,
        status=RequestStatus.INCOMPLETE,
        usage_source=UsageSource.ESTIMATED,
        ended_at_ms=max(ended_at_ms, event.started_at_ms),
        input_tokens=event.held_input_tokens,
        output_tokens=output_tokens,
        spend_nanousd=min(spend, event.held_nanousd),
        error_code=GATEWAY_LOST,
    )


def void_event(info: HoldInfo, *, code: str, http_status: int, ended_at_ms: int) -> UsageEvent:
    """The zero row of a request that was reserved and then refused before anything was sent."""
    event = info.event
    return msgspec.structs.replace(
        event,
        status=RequestStatus.FAILED,
        usage_source=UsageSource.COUNTED,
        ended_at_ms=max(ended_at_ms, event.started_at_ms),
        error_code=code,
        http_status=http_status,
    )
