"""Shares of a limit that its work classes keep: what one may take without hurting another.

A class that is in use keeps its whole share: nobody else may take what it has not used of it. One
that has asked for nothing for `LEND_AFTER_MS` lends its share to all, except its floor. Its next
request takes the share back: from then on nobody borrows of it, and what is lent returns as the
borrowers' requests end. So it is whole again within `CLAW_BACK_MS` and the longest total deadline
of the classes; of a minute's limit, in the next minute.

Source of the rule: a class may borrow only if `free - x >= sum over others of (share - used)`.
"""

from collections.abc import Collection, Mapping
from typing import Final, NamedTuple

import msgspec

from routing.contracts.snapshot import ClassPolicy, Snapshot
from routing.decision.credits import LEASE_MS

LEND_AFTER_MS: Final = 60_000
FALLBACK: Final = "fallback"  # the part that is kept for work of other models
# A gateway asks for its gauges at least every two seconds and then knows that a share is wanted
# back; what one owned that was killed is gone when its lease has ended.
CLAW_BACK_MS: Final = LEASE_MS


class Share(NamedTuple):
    """Units of a limit that a class keeps while in use (`full`) and while it lends (`floor`)."""

    full: int
    floor: int


def shares_of(limit: int, classes: Mapping[str, ClassPolicy]) -> dict[str, Share]:
    """What each class keeps of a limit, rounded down; nothing where no class reserves a share."""
    if not any(one.reserve_ratio > 0 for one in classes.values()):
        return {}
    return {
        name: Share(
            int(limit * max(one.reserve_ratio, one.floor_ratio)), int(limit * one.floor_ratio)
        )
        for name, one in classes.items()
    }


def headrooms(snapshot: Snapshot) -> dict[str, float]:
    """What part of each pool's limits is kept for work that falls back to it, by pool.

    Of several models that may fall back to one pool the largest: they share it.
    """
    found: dict[str, float] = {}
    for model in snapshot.models.values():
        for fallback in model.fallbacks:
            other = snapshot.models.get(fallback.model)
            for target in other.targets if other is not None else ():
                found[target.pool] = max(found.get(target.pool, 0.0), fallback.headroom_ratio)
    return found


def with_headroom(
    classes: Mapping[str, ClassPolicy], headroom_ratio: float
) -> Mapping[str, ClassPolicy]:
    """The classes of a pool's limits with a part that is kept for fallbacks and never lent.

    Where no class reserves a share, none keeps a floor either: all but that part is for everybody.
    """
    if headroom_ratio <= 0:
        return classes
    is_shared = any(one.reserve_ratio > 0 for one in classes.values())
    found = {
        name: one if is_shared else msgspec.structs.replace(one, floor_ratio=0.0)
        for name, one in classes.items()
    }
    found[FALLBACK] = ClassPolicy(
        0.0, 0.0, 0.0, reserve_ratio=headroom_ratio, floor_ratio=headroom_ratio
    )
    return found


def alone(limit: int, shares: Mapping[str, Share], work_class: str) -> int:
    """What a class may count on when nobody knows what the others use.

    Its share, and its part of what is nobody's. Over all classes it is at most the limit.
    """
    if work_class not in shares:
        return limit
    spare = limit - sum(share.full for share in shares.values())
    return shares[work_class].full + spare // len(shares)


def most(limit: int, shares: Mapping[str, Share], work_class: str) -> int:
    """What a class can have while no other lends: its share and all that is nobody's."""
    if work_class not in shares:
        return limit
    return limit - sum(share.full for name, share in shares.items() if name != work_class)


def room(
    limit: int,
    used: Mapping[str, int],
    shares: Mapping[str, Share],
    in_use: Collection[str],
    work_class: str,
) -> int:
    """What a class that asks may take of a limit, on top of what it has.

    `used` counts every class's units, `in_use` names the classes that lend nothing. The store's
    script carries out the same rule; a property test holds the two equal.
    """
    free = limit - sum(used.values())
    kept = sum(
        max(0, share.full - used.get(name, 0)) if name in in_use or used.get(name) else share.floor
        for name, share in shares.items()
        if name != work_class
    )
    share = shares.get(work_class)
    own = share.full - used.get(work_class, 0) if share else 0
    return max(0, min(free, max(own, free - kept)))
