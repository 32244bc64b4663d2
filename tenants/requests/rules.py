"""What may be asked for, what may be granted, and the room that the fleet has beside it."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from routing.contracts.enums import Dimension, WindowKind

MAX_OPEN = 20  # requests of one tenant that wait for a decision
LONGEST = timedelta(days=366)  # of a grant that ends; a longer one is a new limit without an end
SOONEST = timedelta(minutes=1)  # an end nearer than this would be over before it is in force


def why_no_end(ends_at: datetime, now: datetime) -> str:
    """Why a grant cannot end then; empty if it can."""
    if ends_at < now + SOONEST:
        return "The end lies in the past, or is less than a minute ahead."
    if ends_at > now + LONGEST:
        return "The end is more than a year ahead."
    return ""


def why_no_grant(*, amount: int, present: int, asked: int) -> str:
    """Why this amount cannot be granted on top of the present limit; empty if it can."""
    if amount <= present:
        return "A grant is above the present limit."
    if amount > asked:
        return "A grant is at most what was asked for."
    return ""


@dataclass(frozen=True, slots=True)
class ReplicaLoad:
    """What the collector last saw of one replica; None is unknown, never 0."""

    is_ready: bool
    kv_free_tokens: int | None
    kv_tokens: int | None
    input_tokens_per_s: float | None
    output_tokens_per_s: float | None


@dataclass(frozen=True, slots=True)
class Load:
    """Replicas together. Sums are over the `seen_replicas` whose figures are known.

    `kv_usage_ratio` is that of all seen KV space; rates are tokens per minute. None: none is seen.
    """

    replicas: int
    ready_replicas: int
    seen_replicas: int
    kv_free_tokens: int | None
    kv_tokens: int | None
    input_tokens_per_min: int | None
    output_tokens_per_min: int | None

    @property
    def kv_usage_ratio(self) -> float | None:
        """Used share of the seen KV space, 0 to 1."""
        if not self.kv_tokens or self.kv_free_tokens is None:
            return None
        return 1 - self.kv_free_tokens / self.kv_tokens


def load_of(replicas: Iterable[ReplicaLoad]) -> Load:
    """Sum replicas up; one without figures counts as a replica and adds to no sum."""
    found = list(replicas)
    seen = [one for one in found if one.kv_free_tokens is not None and one.kv_tokens]
    return Load(
        replicas=len(found),
        ready_replicas=sum(one.is_ready for one in found),
        seen_replicas=len(seen),
        kv_free_tokens=sum(one.kv_free_tokens or 0 for one in seen) if seen else None,
        kv_tokens=sum(one.kv_tokens or 0 for one in seen) if seen else None,
        input_tokens_per_min=_per_minute([one.input_tokens_per_s for one in seen]),
        output_tokens_per_min=_per_minute([one.output_tokens_per_s for one in seen]),
    )


def _per_minute(rates: list[float | None]) -> int | None:
    known = [rate for rate in rates if rate is not None]
    return round(60 * sum(known)) if known else None


@dataclass(frozen=True, slots=True)
class Headroom:
    """The fleet beside one request, in the unit of its limit.

    `promised` is what all active tenants may take by limits like it, `promised_after` with what is
    asked. `bound` is what the fleet takes at most, None where no operator bounded it.
    """

    tenants: int
    promised: int
    promised_after: int
    bound: int | None

    @property
    def promised_ratio(self) -> float | None:
        """Share of the bound that is promised now; above 1 it is oversold."""
        return None if not self.bound else self.promised / self.bound

    @property
    def promised_after_ratio(self) -> float | None:
        """The same after the grant."""
        return None if not self.bound else self.promised_after / self.bound


def bounded_by(dimension: Dimension, window: WindowKind) -> bool:
    """Whether a limit of the fleet bounds the same thing: per minute, or at once."""
    if dimension is Dimension.SPEND_NANOUSD:
        return False
    return window in (WindowKind.MINUTE, WindowKind.NOW)
