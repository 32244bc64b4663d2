"""What may be sent again, and how often: the retry budget of a (pool, tenant)."""

from collections import OrderedDict
from dataclasses import dataclass, field

MAX_BUDGETS = 50_000  # pairs remembered; the least recently used restarts full, 100 B each


@dataclass(slots=True)
class RetryBudgets:
    """Token buckets by (pool, tenant): a retry costs 1, a success gives back a little.

    `burst` tokens at first and at most. With budget share b, retries never exceed b x successes
    plus the burst, so a failing pool cannot multiply its own load.
    """

    per_success: float = 0.1
    burst: float = 10.0
    _tokens: OrderedDict[tuple[str, str], float] = field(default_factory=OrderedDict)

    def left(self, pool: str, tenant: str) -> float:
        """Tokens that the pair has."""
        return self._tokens.get((pool, tenant), self.burst)

    def take(self, pool: str, tenant: str) -> bool:
        """Spend one token; False when none is left."""
        left = self.left(pool, tenant)
        if left < 1:
            return False
        self._put((pool, tenant), left - 1)
        return True

    def succeeded(self, pool: str, tenant: str) -> None:
        """Give back the share of one success. A pair that is full is not stored."""
        left = self._tokens.get((pool, tenant))
        if left is None:
            return
        if left + self.per_success >= self.burst:
            del self._tokens[pool, tenant]
        else:
            self._put((pool, tenant), left + self.per_success)

    def _put(self, pair: tuple[str, str], tokens: float) -> None:
        self._tokens[pair] = tokens
        self._tokens.move_to_end(pair)
        if len(self._tokens) > MAX_BUDGETS:
            self._tokens.popitem(last=False)
