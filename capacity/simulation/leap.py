"""Decode-only steps in a row, in closed form: what makes simulated time cheap."""

from typing import NamedTuple


class Leap(NamedTuple):
    """Steps in a row that only decode the same requests, so that all of them are told at once.

    Step j (from 0) takes `first_s + j * growth_s`; the shortest of `decodes` answers ends with
    step `steps`. `has_edges`: some of them still fill blocks that others may find.
    """

    start_s: float
    steps: int
    decodes: int
    first_s: float
    growth_s: float
    has_edges: bool = False

    def end_s(self, steps: int) -> float:
        """When the first `steps` of them are done."""
        return self.start_s + steps * self.first_s + self.growth_s * (steps * (steps - 1) / 2)

    def begun_by(self, now_s: float) -> int:
        """Steps that have begun before `now_s`: what comes then is seen by the next one."""
        low, high = 1, self.steps
        while low < high:
            middle = (low + high) // 2
            if self.end_s(middle) >= now_s:
                high = middle
            else:
                low = middle + 1
        return low
