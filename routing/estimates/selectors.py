"""How well holds predict what engines report, from what the gateways tell one another."""

from dataclasses import dataclass
from typing import cast

import msgspec
from django.conf import settings
from redis.exceptions import RedisError

from routing.contracts.estimates import decode_estimates
from routing.store import keys
from routing.store.pooled import sync_client
from telemetry.stats.sketch import count_of, quantile
from telemetry.stats.token_rates import MIN_SAMPLES, error_of, merged, rate_of, template_of

STORE_TIMEOUT_S = 1.0
MAX_SHOWN = 200


@dataclass(frozen=True, slots=True)
class ModelEstimate:
    """One model. Rates are bytes per token, None while the prior stands, as `template_tokens` is.

    `held_ratio_*` are held input tokens per reported one: 1 is exact, below 1 is debt; None
    without samples.
    """

    model: str
    samples: int
    plain_rate: float | None
    plain_median: float | None
    dense_rate: float | None
    template_tokens: int | None
    held_ratio_p5: float | None
    held_ratio_p50: float | None
    held_ratio_p95: float | None


def model_estimates() -> list[ModelEstimate] | None:
    """Every model that any gateway has learnt of, by name; None when the store is away."""
    client = sync_client(settings.REDIS_URL, timeout_s=STORE_TIMEOUT_S)
    try:
        raws = cast("dict[bytes, bytes]", client.hgetall(keys.ESTIMATES)).values()
    except RedisError:
        return None
    finally:
        client.close()
    words = []
    for raw in raws:
        try:
            words.append(decode_estimates(raw))
        except msgspec.MsgspecError:
            continue  # of another version of this program
    tallies = merged(part for word in words for part in word.learnt)
    found = []
    for model, tally in sorted(tallies.items())[:MAX_SHOWN]:
        error = error_of(tally.error)
        found.append(
            ModelEstimate(
                model=model,
                samples=error.samples,
                plain_rate=_learnt(tally.plain),
                plain_median=quantile(tally.plain, 0.5),
                dense_rate=_learnt(tally.dense),
                template_tokens=_template(tally.template),
                held_ratio_p5=error.low,
                held_ratio_p50=error.median,
                held_ratio_p95=error.high,
            )
        )
    return found


def _template(bins: dict[int, int]) -> int | None:
    return template_of(bins, 0) if count_of(bins) >= MIN_SAMPLES else None


def _learnt(bins: dict[int, int]) -> float | None:
    return rate_of(bins, 0.0) if count_of(bins) >= MIN_SAMPLES else None
