"""What a request leaves behind: the usage event, the shape row, the hold's description."""

from typing import Any, NamedTuple

import msgspec

from routing.contracts.enums import RequestStatus, UsageSource
from routing.contracts.pricing import spend_nanousd
from routing.contracts.usage import HoldInfo, ShapeRow, UsageEvent, encode_hold_info
from routing.decision.prefix import chain_hashes
from routing.decision.types import Refusal
from routing.gateway.dialects.continuing import Sent
from routing.gateway.dialects.usage import Usage
from routing.gateway.exchange import Exchange
from routing.gateway.names import names_of
from routing.gateway.refusal import scope_of, status_of

ITL_PRIOR_S = 0.03  # expected gap between tokens, until a pool's own figure is known
NO_USAGE = Usage(0, 0, 0, 0, False)


class End(NamedTuple):
    """How a request ended. `usage` is what is charged; `source` where it comes from."""

    status: RequestStatus
    usage: Usage
    source: UsageSource
    ended_ms: int
    http_status: int
    error_code: str = ""


def skeleton(exchange: Exchange, gateway_id: str) -> UsageEvent:
    """The event as far as it is known at reservation; charges nothing yet."""
    amounts = exchange.estimate.amounts
    names = names_of(exchange.request.headers)
    return UsageEvent(
        request_id=exchange.request_id,
        tenant_id=exchange.tenant.id,
        key_id=exchange.key.id,
        project_id=exchange.key.project_id,
        model_asked=exchange.call.model,
        model=exchange.model.name,
        status=RequestStatus.FAILED,
        usage_source=UsageSource.COUNTED,
        work_class=exchange.work_class,
        policy=exchange.snapshot.policy.label,
        price_version=exchange.price.version,
        gateway_id=gateway_id,
        started_at_ms=exchange.arrived_ms,
        ended_at_ms=exchange.arrived_ms,
        held_input_tokens=amounts.input_tokens,
        held_output_tokens=amounts.output_tokens,
        held_nanousd=amounts.spend_nanousd,
        images=exchange.call.ask.images,
        is_stream=exchange.call.is_stream,
        operation=exchange.operation.name,
        task_id=names.task_id,
        task_kind=names.task_kind,
        step=names.step,
        session=names.session,
        parent_id=names.parent_id,
        task_outcome=names.outcome,
        task_score=names.score_ratio,
    )


def hold_info(exchange: Exchange) -> bytes:
    """What another process needs to end the request, by whom it is served now, if we are lost."""
    event = exchange.skeleton
    name, version = exchange.model.name, exchange.price.version
    if event.model != name:
        event = msgspec.structs.replace(event, model=name, price_version=version)
    return encode_hold_info(HoldInfo(event, exchange.price, ITL_PRIOR_S, exchange.once))


def counted(exchange: Exchange, output_tokens: int) -> Usage:
    """Usage when the upstream stated none: estimated input, output as relayed."""
    return Usage(exchange.estimate.amounts.input_tokens, 0, output_tokens, 0, False)


def with_carried(usage: Usage, sent: Sent, rest_events: int) -> Usage:
    """Usage of a whole answer that went on elsewhere, from what the last replica reports.

    Its prompt held the tokens that were sent before: they are output, and that they were computed
    again is not the caller's cost.
    """
    found = sent.whole(usage.input_tokens, usage.output_tokens, rest_events)
    cached = min(usage.cached_tokens, found.input_tokens)
    return usage._replace(
        input_tokens=found.input_tokens,
        cached_tokens=cached,
        cache_write_tokens=min(usage.cache_write_tokens, found.input_tokens - cached),
        output_tokens=found.output_tokens,
        reasoning_tokens=min(usage.reasoning_tokens, found.output_tokens),
    )


def images_in(exchange: Exchange, usage: Usage) -> int:
    """Pictures that are charged: none where no prompt was."""
    return exchange.call.ask.images if usage.input_tokens else 0


def spend_of(exchange: Exchange, usage: Usage) -> int:
    """What the usage costs at the request's own price, in nano-dollars."""
    return spend_nanousd(
        exchange.price,
        usage.input_tokens,
        usage.cached_tokens,
        usage.output_tokens,
        cache_write_tokens=usage.cache_write_tokens,
        reasoning_tokens=usage.reasoning_tokens,
        images=images_in(exchange, usage),
    )


def usage_event(exchange: Exchange, end: End) -> UsageEvent:
    """The ledger's row of an ended reservation."""
    usage, first = end.usage, exchange.first_token_s
    return msgspec.structs.replace(
        exchange.skeleton,
        model=exchange.model.name,
        price_version=exchange.price.version,
        status=end.status,
        usage_source=end.source,
        ended_at_ms=end.ended_ms,
        pool=exchange.pool,
        replica=exchange.replica,
        region=exchange.region,
        first_token_at_ms=exchange.millis(first) if first else None,
        input_tokens=usage.input_tokens,
        cached_tokens=usage.cached_tokens,
        output_tokens=usage.output_tokens,
        reasoning_tokens=usage.reasoning_tokens,
        cache_write_tokens=usage.cache_write_tokens,
        images=images_in(exchange, usage),
        spend_nanousd=spend_of(exchange, usage),
        attempts=exchange.attempts,
        http_status=end.http_status,
        error_code=end.error_code,
        is_suspicious=usage.is_suspicious,
        upstream_request_id=exchange.upstream_id,
        hops_us=exchange.hops_us or {},
    )


def shape_row(exchange: Exchange, end: End, outcome: str, cancelled_ms: int | None) -> ShapeRow:
    """The text-free row of a request that was at least read; refused ones are `refused:<code>`.

    Of any refusal, also one after a reservation, it says what refused: its tenant asks later.
    """
    first, usage, call = exchange.first_token_s, end.usage, exchange.call
    names = names_of(exchange.request.headers)
    return ShapeRow(
        request_id=exchange.request_id,
        tenant_id=exchange.tenant.id,
        model=exchange.model_name or call.model,
        work_class=exchange.class_name or exchange.tenant.default_class.value,
        arrived_at_ms=exchange.arrived_ms,
        outcome=outcome,
        ended_at_ms=end.ended_ms,
        first_token_at_ms=exchange.millis(first) if first else None,
        cancelled_at_ms=cancelled_ms,
        max_tokens=call.ask.output_tokens,
        input_tokens=usage.input_tokens or exchange.input_tokens,
        cached_tokens=usage.cached_tokens,
        output_tokens=usage.output_tokens,
        session=names.session,
        task_id=names.task_id,
        task_kind=names.task_kind,
        step=names.step,
        resend_count=resends_of(exchange),
        pool=exchange.pool,
        replica=exchange.replica,
        prefix_hashes=prefix_of(exchange),
        **(_refused(exchange, exchange.refusal) if exchange.refusal is not None else {}),
    )


def _refused(exchange: Exchange, refusal: Refusal) -> dict[str, Any]:
    wait_s = refusal.retry_after_s
    return {
        "key_id": exchange.key.id,
        "refused_code": refusal.reason.value,
        "refused_status": status_of(refusal),
        "refused_limit": refusal.limit,
        "refused_scope": scope_of(refusal),
        "retry_after_ms": None if wait_s is None else round(wait_s * 1000),
    }


def resends_of(exchange: Exchange) -> int:
    """How often the client's SDK says that it has sent this before."""
    raw = exchange.request.headers.get(b"x-stainless-retry-count")
    if raw is None:
        return 0
    return int(raw) if raw.isdigit() and len(raw) <= 3 else 0


def prefix_of(exchange: Exchange) -> list[int]:
    """Chained hashes of the prompt's blocks, computed once a request."""
    found = exchange.prefix_hashes
    if found is None:
        salt = f"{exchange.tenant.cache_salt}:{exchange.call.model}".encode()
        found = exchange.prefix_hashes = chain_hashes(salt, exchange.call.prompt)
    return found
