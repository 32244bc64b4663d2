"""What overrides do to a request: which apply, what they refuse, how far they lower its bounds.

Of two on one field the tighter holds, in any order; one that has ended does nothing.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from routing.contracts.capacity import CapacityScope
from routing.contracts.enums import Dimension, LimitScope, WindowKind, WorkClass
from routing.contracts.override import Override, OverrideKind
from routing.contracts.snapshot import Limit
from routing.decision.draw import draw
from routing.decision.types import Reason, Refusal

SHED_RETRY_S: Final = 30.0
JITTER_RATIO: Final = 0.2  # those refused by overload come back spread over a fifth more
PROMPT_LIMIT: Final = "input_tokens_per_request"


def applying(
    items: Iterable[Override],
    kind: OverrideKind,
    *,
    tenant_id: str,
    work_class: WorkClass,
    model: str,
    now_ms: int,
) -> list[Override]:
    """Those of a kind that hold now for such a request."""
    return [
        one
        for one in items
        if one.kind is kind
        and now_ms < one.ends_at_ms
        and one.tenant_id in ("", tenant_id)
        and one.work_class in (None, work_class)
        and one.model in ("", model)
    ]


def concurrency_limit(items: Iterable[Override], tenant_id: str, now_ms: int) -> Limit | None:
    """The tenant's tightest concurrency cap as a limit that the store counts, over all gateways."""
    caps = [
        one.amount
        for one in items
        if one.kind is OverrideKind.CONCURRENCY_CAP
        and one.tenant_id == tenant_id
        and now_ms < one.ends_at_ms
    ]
    if not caps:
        return None
    return Limit(LimitScope.TENANT, Dimension.CONCURRENCY, WindowKind.NOW, min(caps))


def output_cap(found: Sequence[Override], cap_tokens: int) -> int:
    """The bound on output, lowered by the overrides that apply."""
    return min([cap_tokens, *(one.amount for one in found)])


def paused(found: Sequence[Override], request_id: str, now_ms: int) -> Refusal | None:
    """The refusal of a paused class; the wait is to the last end, spread over a fifth more."""
    if not found:
        return None
    last = max(found, key=lambda one: one.ends_at_ms)
    wait_s = (last.ends_at_ms - now_ms) / 1000 * _spread(request_id)
    return _overload(
        Reason.CLASS_PAUSED,
        last,
        f"{_whose(last)} is paused: {last.reason} It may be held longer.",
        wait_s,
    )


def shed(found: Sequence[Override], request_id: str) -> Refusal | None:
    """The refusal of a request that is not in the admitted share; equal on every gateway."""
    if not found:
        return None
    tightest = min(found, key=lambda one: one.admitted_ratio)
    if draw(request_id, 0, "shed") < tightest.admitted_ratio:
        return None
    share = f"{tightest.admitted_ratio:.0%}"
    return _overload(
        Reason.SHED,
        tightest,
        f"{_whose(tightest)} is admitted only to {share}: {tightest.reason}",
        SHED_RETRY_S * _spread(request_id),
    )


def prompt_too_long(found: Sequence[Override], input_tokens: int, now_ms: int) -> Refusal | None:
    """The refusal of a prompt above the tenant's temporary cap."""
    above = [one for one in found if input_tokens > one.amount]
    if not above:
        return None
    cap = min(one.amount for one in above)
    last = max(above, key=lambda one: one.ends_at_ms)
    wait_s = (last.ends_at_ms - now_ms) / 1000
    return Refusal(
        Reason.CONTEXT_CAPPED,
        f"Prompts of this tenant are capped at {cap} tokens for now, this one has about "
        f"{input_tokens}: {last.reason} Send a shorter prompt, or retry in {_whole(wait_s)} s; "
        "the cap may be held longer.",
        wait_s,
        LimitScope.TENANT,
        PROMPT_LIMIT,
        "messages",
    )


def _overload(reason: Reason, one: Override, text: str, wait_s: float) -> Refusal:
    limit = f"class_{one.work_class.value}" if one.work_class else "class"
    message = f"{text} Retry in {_whole(wait_s)} s."
    return Refusal(reason, message, wait_s, CapacityScope.FLEET, limit)


def _whose(one: Override) -> str:
    name = f"The class {one.work_class.value}" if one.work_class else "Every class"
    return f"{name} of {one.model}" if one.model else name


def _spread(request_id: str) -> float:
    return 1 + JITTER_RATIO * draw(request_id, 0, "retry")


def _whole(wait_s: float) -> int:
    return max(1, -int(-wait_s // 1))
