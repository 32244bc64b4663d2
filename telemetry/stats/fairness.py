"""How evenly a total is shared."""

from collections.abc import Iterable


def jain_index(shares: Iterable[float]) -> float | None:
    """Jain's index `(sum x)^2 / (n * sum x^2)`: 1 all equal, 1/n one has it all; None without any.

    Source: Jain, Chiu, Hawe, A Quantitative Measure of Fairness, DEC-TR-301, 1984.
    """
    amounts = [share for share in shares if share > 0]
    squares = sum(share * share for share in amounts)
    return sum(amounts) ** 2 / (len(amounts) * squares) if squares else None
