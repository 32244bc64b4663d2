"""Models that may answer in place of the one asked for, as one request was held for them.

They are settled before the reservation: which the caller may use, which can do what it asks, and
what each may cost at most. The one hold then bounds whichever of them serves.
"""

from collections.abc import Callable

import msgspec

from routing.contracts.pricing import price_at
from routing.contracts.snapshot import ModelEntry
from routing.decision.estimate import Estimate, Rates, estimate
from routing.decision.fallback import falls_back
from routing.decision.types import Amounts, Reason, Refusal
from routing.gateway.exchange import Exchange, Stand, Step
from routing.gateway.fleet import Fleet
from routing.gateway.names import EXACT_MODEL
from routing.gateway.resolve import has_own_limits, may_use

RatesOf = Callable[[str, float], Rates]
CapOf = Callable[[Exchange, ModelEntry], int]


def stands_of(
    exchange: Exchange, fleet: Fleet, rates_of: RatesOf, cap_of: CapOf
) -> tuple[tuple[Stand, ...], Estimate]:
    """The fallbacks that may serve a request, and its estimate widened to bound each of them.

    Left out: what tenant or key may not use, what has limits of its own for them (the reservation
    holds on those of the model asked for), what cannot do what the request asks, and what takes
    less context. Nobody gets more output than of the model asked for.
    """
    whole = exchange.estimate
    amounts = whole.amounts
    found: list[Stand] = []
    if exchange.request.headers.get(EXACT_MODEL, b"").lower() == b"true":
        return (), whole
    for fallback in exchange.model.fallbacks:
        model = exchange.snapshot.models.get(fallback.model)
        if model is None or not _may_serve(exchange, model, fleet):
            continue
        price = price_at(model.prices, exchange.arrived_ms)
        one = estimate(
            exchange.call.ask,
            price,
            # Seldom asked, it may stay unseen for long: every hold would be several times too wide.
            rates=rates_of(model.name, model.bytes_per_token)._replace(is_unseen=False),
            context_tokens=model.context_tokens,
            output_cap_tokens=min(whole.choice_output_tokens, cap_of(exchange, model)),
        )
        if isinstance(one, Refusal):
            continue
        amounts = _widest(amounts, one.amounts)
        found.append(Stand(model, price, one.choice_output_tokens, fallback.when))
    return tuple(found), msgspec.structs.replace(whole, amounts=amounts)


def asked_of(exchange: Exchange) -> Stand:
    """The model asked for."""
    return Stand(exchange.model, exchange.price, exchange.estimate.choice_output_tokens)


def turn_to(exchange: Exchange, stand: Stand) -> None:
    """Let a model serve from now on, at its price and within its bound."""
    exchange.stand = stand if stand.when else None
    exchange.model, exchange.price = stand.model, stand.price
    exchange.model_name = stand.model.name
    exchange.estimate = msgspec.structs.replace(
        exchange.estimate, choice_output_tokens=stand.choice_output_tokens
    )


def _may_serve(exchange: Exchange, model: ModelEntry, fleet: Fleet) -> bool:
    tenant, key = exchange.tenant, exchange.key
    return (
        bool(model.prices)
        and model.context_tokens >= exchange.model.context_tokens
        and may_use(tenant, key, model.name)
        and not has_own_limits(tenant, model.name)
        and fleet.lacking(model.name, exchange.call.needs) is None
    )


def _widest(one: Amounts, other: Amounts) -> Amounts:
    return Amounts(
        max(one.input_tokens, other.input_tokens),
        max(one.output_tokens, other.output_tokens),
        max(one.spend_nanousd, other.spend_nanousd),
        max(one.kv_tokens, other.kv_tokens),
    )


def next_stand(exchange: Exchange, reason: Reason) -> Stand | None:
    """The first fallback left that the policy allows after a failure for `reason`."""
    failures = exchange.snapshot.policy.failures
    for stand in exchange.stands:
        if falls_back(
            stand.when,
            reason,
            attempts=exchange.attempts,
            max_attempts=failures.attempts,
            has_output=exchange.step is Step.RELAYING,
        ):
            return stand
    return None
