"""The only callers of the reserve, settle and lease scripts: arguments, replies, nothing else.

Replies are lists; their places are named here. Protocol: the accounting design, section 2.
"""

from collections.abc import Sequence
from typing import Final

import hiredis
import msgspec

from routing.contracts.enums import Dimension, SettleKind
from routing.decision.limits import Edges, Group, window_edges
from routing.store import keys
from routing.store.batches import META_KEYS, Batches
from routing.store.calls import ReserveItem, SettleItem, reserve_argument, settle_argument
from routing.store.client import Callback
from routing.store.cluster import Store
from routing.store.once import claim, conclude
from routing.store.plans import Plan, as_text
from routing.store.scripts import (
    LEASE,
    ONCE_RESERVE,
    ONCE_SETTLE,
    RESERVE,
    SETTLE,
    TASK_RESERVE,
    TASK_SETTLE,
    USE_RESERVE,
    USE_SETTLE,
    Script,
)
from routing.store.uses import USE, conclude_use, open_use
from routing.store.workflow import TaskClaim, claim_step, conclude_step

LEASE_MS: Final = 15_000
_REFUSES_WRITES: Final = ("MISCONF ", "OOM ", "READONLY ", "LOADING ")
NOT_AFTER_MS: Final = 1_000  # a command stuck in a socket cannot take effect later than this
WINDOW_GRACE_MS: Final = 26 * 3_600_000  # counters outlive their window by this

# Places in replies. All: [verdict, epoch, store ms]. OK of reserve: left of each limit, pos, legs.
VERDICT: Final = 0
EPOCH: Final = 1
NOW_MS: Final = 2
LEFT: Final = 3
RESERVE_POS: Final = 4
LEGS: Final = 5
NO_GROUP: Final = 3  # NO: group (from 1), dimension, used, held, wait ms, left as if admitted
NO_DIMENSION: Final = 4
NO_USED: Final = 5
NO_HELD: Final = 6
NO_WAIT_MS: Final = 7
NO_LEFT: Final = 8
ENTRY: Final = 3  # OK of settle: entry id, pos
SETTLE_POS: Final = 4
LEASE_POS: Final = 3  # OK of lease: pos, state, one result per item
LEASE_STATE: Final = 4
LEASE_RESULTS: Final = 5

ENDED_BEFORE: Final = 0  # lease results
RENEWED: Final = 1
SEND_LEGS: Final = 2

_encode: Final = msgspec.msgpack.Encoder().encode
TAGS: Final = tuple(keys.bucket_tag(bucket) for bucket in range(keys.BUCKETS))


def group_edges(groups: Sequence[Group], timezone: str, now_ms: int) -> tuple[Edges, ...]:
    """The window edges of each group at `now_ms`; zeros for gauges."""
    return tuple(
        (0, 0, 0)
        if group.is_gauge
        else window_edges(group.window, timezone, now_ms, group.anchor_min)
        for group in groups
    )


class Reservations:
    """The three scripts on one connection.

    Reserves and settles share calls (`store.batches`), but for those with an idempotency key and
    uses of resources. Callbacks get the reply list, a `hiredis.ReplyError`, `NOT_SENT` or
    `NO_REPLY`.
    """

    def __init__(self, store: Store) -> None:
        """Nothing is sent before the first call."""
        self.store = store
        self.batches = Batches(store)

    def reserve(  # noqa: PLR0913 -- what the scripts take, by name
        self,
        *,
        bucket: int,
        request_id: str,
        not_after_ms: int,
        info: msgspec.Raw,
        amounts: Sequence[int],
        plan: Plan,
        done: Callback,
        once: str = "",
        only_known: bool = False,
        tenant_id: str = "",
        lease_ms: int = LEASE_MS,
        task: TaskClaim | None = None,
    ) -> None:
        """Hold `amounts` on every counter of the plan or on none; with `once`, if its key is free.

        `once` may be `store.uses.USE`: then the hold leaves a record. `only_known`: `once.claim`.
        `task`: the plan has its counters too, and its record is looked at before all others.
        """
        legs = as_text(plan.legs(amounts))
        item = ReserveItem(plan.raw, request_id, not_after_ms, lease_ms, info, amounts, legs)
        if not once and task is None:
            self.batches.reserve(bucket, item, done)
            return
        run_id = self.store.run_id_of(bucket)
        argument = reserve_argument(run_id, (item,))
        script = RESERVE
        if once == USE:
            argument = open_use(as_text(argument), request_id, info, tenant_id)
            script = USE_RESERVE
        elif once:
            argument = claim(as_text(argument), once, request_id, tenant_id, only_known=only_known)
            script = ONCE_RESERVE
        if task is not None:
            has_once = script is ONCE_RESERVE
            argument = claim_step(as_text(argument), task, tenant_id, request_id, has_once=has_once)
            script = TASK_RESERVE[script]
        self._alone(script, bucket, argument, done)

    def settle(  # noqa: PLR0913
        self,
        *,
        bucket: int,
        request_id: str,
        res_epoch: int,
        kind: str,
        charge: dict[str, int],
        event: bytes,
        legs: bytes,
        done: Callback,
        plan: msgspec.Raw | None = None,
        amounts: Sequence[int] = (),
        once: str = "",
        tenant_id: str = "",
        answer: bytes | None = None,
        task: tuple[str, int] | None = None,
    ) -> None:
        """End a reservation: release its hold, charge, append the stream entry. Safe to repeat.

        `plan` (a `Plan.raw`) and `amounts` are what the legs came of: the store need not read them.
        `once`, `tenant_id` and `answer` as `store.once.conclude` takes them. `task`: the capped
        task that it was a step of, and the step's number.
        """
        item = SettleItem(
            TAGS[bucket],
            plan,
            request_id,
            res_epoch,
            kind,
            charge,
            as_text(event),
            as_text(legs),
            amounts,
        )
        if not once and task is None:
            self.batches.settle(bucket, item, done)
            return
        argument = settle_argument(self.store.run_id_of(bucket), (item,))
        script = SETTLE
        if once == USE:
            argument = conclude_use(
                as_text(argument), request_id, as_text(answer or b""), tenant_id
            )
            script = USE_SETTLE
        elif once:
            script = ONCE_SETTLE
            argument = conclude(
                as_text(argument),
                once,
                request_id,
                tenant_id,
                is_kept=answer is not None,
                answer=as_text(answer or b""),
            )
        if task is not None:
            charged = None if kind == SettleKind.VOID else charge.get(Dimension.SPEND_NANOUSD, 0)
            argument = conclude_step(as_text(argument), tenant_id, *task, request_id, charged)
            script = TASK_SETTLE[script]
        self._alone(script, bucket, argument, done)

    def lease(
        self, *, bucket: int, not_after_ms: int, items: Sequence[object], done: Callback
    ) -> None:
        """Renew holds or register them in a new epoch; without items only ask where it stands.

        An item is `lease_item(...)`.
        """
        argument = _encode(
            (
                TAGS[bucket],
                self.store.run_id_of(bucket),
                not_after_ms,
                LEASE_MS,
                items,
            )
        )
        self._alone(LEASE, bucket, argument, done)

    def _alone(self, script: Script, bucket: int, argument: bytes, done: Callback) -> None:
        """Behind what was asked before: a settle that waits frees what this may need."""
        self.batches.send(bucket)
        self.store.script(script, META_KEYS[bucket], argument, done)


def wrote_nothing(reply: object) -> bool:
    """Whether this error says that the store refused the first write of a script.

    Its disk or memory is full, it is a replica, or still loads: what was asked has no effect, now
    or later. It refuses only scripts that have not written yet.
    """
    return isinstance(reply, hiredis.ReplyError) and str(reply).startswith(_REFUSES_WRITES)


def lease_item(
    request_id: str,
    out_so_far: int,
    res_epoch: int,
    info: bytes | None,
    legs: bytes | None,
    expires_at_ms: int = 0,
) -> tuple[object, ...]:
    """One hold of a lease call; `info` and `legs` only when it may be unknown in this epoch.

    `info` alone: it has changed.

    `expires_at_ms`: not a lease from now on, but until then; it is never shortened.
    """
    told = (
        None if info is None else as_text(info),
        None if legs is None else msgspec.Raw(legs),
        expires_at_ms or None,
    )
    return (request_id, out_so_far, res_epoch, *(told if any(told) else ()))
