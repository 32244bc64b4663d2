"""What tokens cost: the one place where usage and a price row become money.

The gateway holds with it, the sweeper and the ledger charge with it, the console shows with it.
"""

from routing.contracts.snapshot import Price

TOKENS_PER_PRICE_UNIT = 1_000_000  # prices are nano-dollars per million tokens


def spend_nanousd(
    price: Price,
    input_tokens: int,
    cached_tokens: int,
    output_tokens: int,
    *,
    cache_write_tokens: int = 0,
    reasoning_tokens: int = 0,
    images: int = 0,
) -> int:
    """Nano-dollars of one usage row, rounded up once for the whole row.

    Cached and cache-written tokens are parts of the input, reasoning of the output: each is cut to
    what is left of its whole, charged at its own price, and not again at the full one. Counts below
    zero count as zero.
    """
    # Comparisons, not `min` and `max`: it runs three times a request.
    whole = input_tokens if input_tokens > 0 else 0
    output = output_tokens if output_tokens > 0 else 0
    scaled = whole * price.input_nanousd + output * price.output_nanousd
    cached = 0
    if cached_tokens > 0:
        cached = cached_tokens if cached_tokens < whole else whole
        scaled += cached * (price.cached_nanousd - price.input_nanousd)
    if cache_write_tokens > 0 and price.cache_write_nanousd is not None:
        written = min(cache_write_tokens, whole - cached)
        scaled += written * (price.cache_write_nanousd - price.input_nanousd)
    if reasoning_tokens > 0 and price.reasoning_nanousd is not None:
        thought = min(reasoning_tokens, output)
        scaled += thought * (price.reasoning_nanousd - price.output_nanousd)
    if images > 0:
        scaled += images * price.image_nanousd * TOKENS_PER_PRICE_UNIT
    return -(-scaled // TOKENS_PER_PRICE_UNIT)


def hold_nanousd(price: Price, input_tokens: int, output_tokens: int, images: int = 0) -> int:
    """The most that so many tokens can cost, whichever of the parts they turn out to be."""
    dearest_input = max(price.input_nanousd, price.cached_nanousd, price.cache_write_nanousd or 0)
    dearest_output = max(price.output_nanousd, price.reasoning_nanousd or 0)
    scaled = input_tokens * dearest_input + output_tokens * dearest_output
    scaled += images * price.image_nanousd * TOKENS_PER_PRICE_UNIT
    return -(-scaled // TOKENS_PER_PRICE_UNIT)


def price_at(prices: tuple[Price, ...], now_ms: int) -> Price:
    """The row in force at `now_ms`: the newest already valid, else the oldest.

    `prices` is ordered by `valid_from_ms`, oldest first, and never empty (a snapshot's promise).
    """
    for price in reversed(prices):
        if price.valid_from_ms <= now_ms:
            return price
    return prices[0]
