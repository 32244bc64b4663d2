"""What a replica is sent: the caller's body with what the gateway decided, and its head."""

from routing.contracts.enums import WorkClass
from routing.gateway.dialects.body import Decided, forwarded_body
from routing.gateway.exchange import Exchange
from routing.gateway.fleet import Endpoint

# What an engine that schedules by priority is told: lower is sooner.
_PRIORITY = {WorkClass.INTERACTIVE: -10, WorkClass.STANDARD: 0, WorkClass.BATCH: 10}


def forwarded(exchange: Exchange, endpoint: Endpoint, served: str) -> tuple[bytes, bytes]:
    """Head and body of a try on `endpoint`, whose pool calls the model `served`."""
    pool = endpoint.pool
    decided = Decided(
        served,
        exchange.estimate.choice_output_tokens - exchange.carried_tokens,
        exchange.tenant.cache_salt,
        _PRIORITY[exchange.work_class] if pool.takes_priority else 0,
        exchange.request_id,
        pool.is_hosted,
    )
    body = forwarded_body(exchange.call, decided, *exchange.rest)
    more = b""
    if exchange.trace is not None:
        more = exchange.trace.forwarded(pool, exchange.replica, served)
    path, request_id = exchange.operation.path, exchange.request_id.encode()
    return endpoint.head(b"POST", path, request_id, len(body), more), body
