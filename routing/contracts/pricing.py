"""What tokens cost: the one place where usage and a price row become money.

The gateway holds with it, the sweeper and the ledger charge with it, the console shows with it.
"""

from routing.contracts.snapshot import Price

TOKENS_PER_PRICE_UNIT = 1_000_000  # prices are nano-dollars per million tokens


def spend_nanousd(price: Price, input_tokens: int, cached_tokens: int, output_tokens: int) -> int:
    """Nano-dollars of one usage row, rounded up once for the whole row.

    Cached tokens are a part of the input: they are cut to it, charged at the cached price, and not
    again at the full one. Counts below zero count as zero.
    """
    # Comparisons, not `min` and `max`: it runs three times a request.
    whole = input_tokens if input_tokens > 0 else 0
    output = output_tokens if output_tokens > 0 else 0
    scaled = whole * price.input_nanousd + output * price.output_nanousd
    if cached_tokens > 0:
        cached = cached_tokens if cached_tokens < whole else whole
        scaled += cached * (price.cached_nanousd - price.input_nanousd)
    return -(-scaled // TOKENS_PER_PRICE_UNIT)


def price_at(prices: tuple[Price, ...], now_ms: int) -> Price:
    """The row in force at `now_ms`: the newest already valid, else the oldest.

    `prices` is ordered by `valid_from_ms`, oldest first, and never empty (a snapshot's promise).
    """
    for price in reversed(prices):
        if price.valid_from_ms <= now_ms:
            return price
    return prices[0]
