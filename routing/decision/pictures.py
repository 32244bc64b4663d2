"""How many tokens a picture may become: a bound over the ways in which open models cut them up."""

from math import ceil
from typing import Final

# Patches of 28 pixels (dynamic resolution, at most 16,384 of them), or the picture shrunk to 1,024
# pixels and cut into patches of 16 with a token a row; tiled models stay below either.
WIDE_PATCH: Final = 28
FINE_PATCH: Final = 16
FINE_SIDE: Final = 1024
MOST_TOKENS: Final = 16_384
LEAST_TOKENS: Final = 640  # models that enlarge every picture to one fixed tile use up to 576
# For a picture whose size cannot be seen: what the finest fixed grid gives for its largest side.
UNKNOWN_TOKENS: Final = 4_160


def picture_tokens(width: int, height: int) -> int:
    """Most prompt tokens of a picture of this size in pixels."""
    wide = ceil(width / WIDE_PATCH) * ceil(height / WIDE_PATCH)
    shrink = max(width, height, FINE_SIDE) / FINE_SIDE
    columns = ceil(width / shrink / FINE_PATCH)
    rows = ceil(height / shrink / FINE_PATCH)
    return min(max(wide, rows * (columns + 1), LEAST_TOKENS), MOST_TOKENS)
