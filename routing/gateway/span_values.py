"""What a request's spans say, in the names of OpenTelemetry's GenAI conventions and ours.

All of it is in the ledger row too, or a stamp. No prompt, answer, key, address or words of an
error: what a caller wrote is said only where it named something that exists (a model) or its own
work (a session, a task), which the ledger keeps as well.
"""

from routing.contracts.capabilities import ApiStyle
from routing.contracts.enums import RequestStatus
from routing.contracts.usage import UsageEvent
from routing.gateway.exchange import Exchange
from routing.gateway.refusal import scope_of, status_of
from routing.gateway.trace import Hop, Trace

MAX_INT = (1 << 63) - 1  # of an attribute; a single number above it would cost its whole batch
CLIENT_CLOSED = "client_closed"  # the caller left: nobody's error
PROVIDER = "headrace"  # whom the caller asked
# Operations whose name in the conventions is another one; the rest keep their own.
_OPERATIONS = {"completions": "text_completion", "responses": "chat", "messages": "chat"}
_PROVIDERS = {ApiStyle.ENGINE: "vllm", ApiStyle.OPENAI: "openai", ApiStyle.ANTHROPIC: "anthropic"}

Values = dict[str, str | int | float | bool]


def call_name(exchange: Exchange) -> str:
    """Name of the span of the call, as HTTP's conventions have it."""
    return f"POST {exchange.operation.path.decode()}"


def hop_name(exchange: Exchange, hop: Hop) -> str:
    """Name of the span of a try, as GenAI's conventions have it."""
    return f"{_operation(exchange)} {hop.model}"


def is_our_fault(exchange: Exchange, event: UsageEvent | None) -> bool:
    """Whether the span of the call is an error: not when the caller was refused for its own."""
    if event is not None and event.status is RequestStatus.INCOMPLETE:
        return True
    return _http_status(exchange, event) >= 500


def call_values(exchange: Exchange, trace: Trace, event: UsageEvent | None) -> Values:
    """Of the call. `event` is its ledger row; None when it was refused before one, or replayed."""
    tenant, refusal, first = exchange.tenant, exchange.refusal, exchange.first_token_s
    found = _named(exchange) | {
        "http.request.method": "POST",
        "http.route": exchange.operation.path.decode(),
        "http.response.status_code": _http_status(exchange, event),
        "gen_ai.provider.name": PROVIDER,
        "headrace.request.id": exchange.request_id,
        "headrace.tenant.id": tenant.id,
        "headrace.key.id": exchange.key.id,
        "headrace.policy.version": exchange.snapshot.policy.label,
        "headrace.attempts": exchange.attempts,
        "headrace.outcome": _outcome(exchange, event),
    }
    if exchange.class_name:
        found["headrace.work_class"] = exchange.class_name
    if trace.reserved_s:
        found["headrace.reserve_s"] = trace.reserved_s - trace.reserving_s
    if trace.hops:
        # Waiting for credits and choosing, after the reservation and before the first try.
        found["headrace.queue_s"] = trace.hops[0].started_s - trace.reserved_s
    if first:
        found["headrace.ttft_s"] = first - exchange.arrived_s
    if exchange.hops_us:
        found["headrace.hooks"] = " ".join(sorted(exchange.hops_us))
        found["headrace.hooks_s"] = sum(exchange.hops_us.values()) / 1e6
    if refusal is not None:
        found |= _stated({"headrace.limit": refusal.limit, "headrace.scope": scope_of(refusal)})
    if event is not None:
        found |= _charged(exchange, event)
    error = _error(exchange, event)
    if error:
        found["error.type"] = error
    return found


def hop_values(exchange: Exchange, hop: Hop, event: UsageEvent | None) -> Values:
    """Of a try. `event` is the ledger row where this try ended the request."""
    first = exchange.first_token_s
    found = _named(exchange) | {
        "gen_ai.provider.name": _PROVIDERS[hop.pool.style],
        "gen_ai.request.model": hop.model,
        "server.address": hop.replica,  # its name: addresses are nobody's business
        "headrace.pool": hop.pool.id,
        "headrace.replica": hop.replica,
        "headrace.region": hop.pool.region,
    }
    if hop.started_s <= first <= hop.ended_s:
        found["gen_ai.response.time_to_first_chunk"] = first - hop.started_s
    if hop.error:
        found["error.type"] = hop.error
    elif event is not None:
        found["gen_ai.response.model"] = hop.model
    if event is not None:
        found |= _usage(event)
    return found


def _named(exchange: Exchange) -> Values:
    """Operation, and once the model is known to exist: what was asked for, and of which."""
    found: Values = {"gen_ai.operation.name": _operation(exchange)}
    if not exchange.model_name:
        return found
    call = exchange.call
    found["gen_ai.request.model"] = call.model
    found["gen_ai.request.stream"] = call.is_stream
    if call.ask.output_tokens is not None:
        found["gen_ai.request.max_tokens"] = min(call.ask.output_tokens, MAX_INT)
    if call.choices > 1:
        found["gen_ai.request.choice.count"] = call.choices
    return found


def _charged(exchange: Exchange, event: UsageEvent) -> Values:
    return (
        _usage(event)
        | _stated(
            {
                "gen_ai.response.model": exchange.model_name if _has_answer(event) else "",
                "gen_ai.conversation.id": event.session,
                "headrace.task.id": event.task_id,
                "headrace.task.kind": event.task_kind,
                "headrace.task.step": event.step,
                "headrace.task.parent_id": event.parent_id,
            }
        )
        | {
            "headrace.usage_source": event.usage_source.value,
            "headrace.spend_nanousd": min(event.spend_nanousd, MAX_INT),
            "headrace.is_degraded": bool(exchange.degraded or exchange.stand),
        }
    )


def _has_answer(event: UsageEvent) -> bool:
    return event.status in (RequestStatus.OK, RequestStatus.INCOMPLETE)


def _usage(event: UsageEvent) -> Values:
    """Token counts as charged, where anything was; unknown is never 0."""
    if not event.input_tokens and not event.output_tokens:
        return {}
    counts = {
        "gen_ai.usage.input_tokens": event.input_tokens,
        "gen_ai.usage.output_tokens": event.output_tokens,
        "gen_ai.usage.cache_read.input_tokens": event.cached_tokens,
    }
    if event.cache_write_tokens:
        counts["gen_ai.usage.cache_creation.input_tokens"] = event.cache_write_tokens
    if event.reasoning_tokens:
        counts["gen_ai.usage.reasoning.output_tokens"] = event.reasoning_tokens
    return {name: min(count, MAX_INT) for name, count in counts.items()}


def _stated(texts: dict[str, str]) -> Values:
    return {name: text for name, text in texts.items() if text}


def _operation(exchange: Exchange) -> str:
    name = exchange.operation.name
    return _OPERATIONS.get(name, name)


def _outcome(exchange: Exchange, event: UsageEvent | None) -> str:
    if event is not None and not event.is_refused:
        return event.status.value
    return "refused" if event is not None or exchange.refusal is not None else "replayed"


def _http_status(exchange: Exchange, event: UsageEvent | None) -> int:
    if event is not None:
        return event.http_status
    return status_of(exchange.refusal) if exchange.refusal is not None else 200


def _error(exchange: Exchange, event: UsageEvent | None) -> str:
    if event is not None and event.error_code:
        return event.error_code
    return exchange.refusal.reason.value if exchange.refusal is not None else ""
