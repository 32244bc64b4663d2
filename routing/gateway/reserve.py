"""One store round trip that holds a request's amounts on all its limits, or on none."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from routing.contracts.enums import StoreMode
from routing.contracts.snapshot import OutagePolicy
from routing.decision.limits import amounts_in_order
from routing.decision.shares import Shares, outage_mode
from routing.decision.types import NO_RATES, Hold, Reason, Refusal, TaskEnd
from routing.decision.workflow import TaskAsk
from routing.gateway.account import Accountant
from routing.gateway.ask import Ask, Template
from routing.gateway.buckets import UNKNOWN_EPOCH, Bucket
from routing.gateway.denials import MANY_USES, no_capacity, refusal_in_reply
from routing.gateway.once import PARAM, Kept, refusal_of
from routing.gateway.returns import Returns
from routing.gateway.workflow import Tasks, claim_of, refusal_in
from routing.store.client import NOT_SENT, Buckets
from routing.store.clock import StoreClock
from routing.store.once import KEPT, KEPT_ANSWER, KEPT_ID, NEW, VERDICTS
from routing.store.plans import as_text
from routing.store.reservations import (
    EPOCH,
    LEASE_MS,
    LEFT,
    LEGS,
    NOT_AFTER_MS,
    NOW_MS,
    RESERVE_POS,
    VERDICT,
    Reservations,
    wrote_nothing,
)
from routing.store.uses import TOO_MANY
from routing.store.workflow import MOVED, OK_END, OK_STEP, read_end

log = logging.getLogger(__name__)

MAX_SENDS: Final = 3  # once, then after EPOCH, WINDOW or LATE: replies that wrote nothing
MAX_TEMPLATES: Final = 50_000  # tenant x key x model x class in use: about 100 MB
DEGRADED_WAITS: Final = 8  # x 50 ms for the only memory of a degraded request, then refuse

Done = Callable[[Hold | Kept | Refusal], None]


class Reserver:
    """Admits requests against the store, or from this gateway's share while it is away.

    Construct in the loop: `Reserver(reservations, accountant, clock)` with the same `Reservations`
    and store clock as the accountant. `gateways` (how many processes share the limits) is kept
    current by the caller.
    """

    def __init__(
        self, reservations: Reservations, accountant: Accountant, clock: StoreClock
    ) -> None:
        """Send nothing yet."""
        self.reservations = reservations
        self.accountant = accountant
        self.clock = clock
        self.loop = asyncio.get_running_loop()
        self.gateways = 1
        self.returns = Returns()
        self.tasks = Tasks()
        self._templates: dict[tuple[str, str, str, str], Template] = {}
        self._away_since_s: dict[int, float] = {}  # buckets whose server is not connected
        reservations.store.on_lost.append(self._lost)
        reservations.store.on_connect.append(self._found)

    def reserve(self, ask: Ask, done: Done) -> None:
        """Hold or refuse; `done` runs in the loop, at once or later, exactly once.

        With a `Hold` its open record is written (or, the hold being in the store, the disk is
        behind): forward. The hold must then be given to `Accountant.end` or `.void`.
        """
        self.accountant.flush()
        bucket = self.accountant.book.buckets[ask.tenant.bucket]
        attempt = _Attempt(self, ask, self.template(ask), bucket, done)
        if self.accountant.is_full:
            attempt.away()
        else:
            attempt.send()

    def mode(self, outage: OutagePolicy) -> StoreMode:
        """How requests are admitted now, for status pages: by the worst bucket in use."""
        away_s = self.store_away_s
        if away_s is None:
            return StoreMode.SHARED
        return outage_mode(policy=outage.store_away, away_s=away_s, max_s=outage.max_s)

    @property
    def store_away_s(self) -> float | None:
        """How long the worst bucket in use has been without the store; None when none is."""
        since_s = min(self._away_since_s.values(), default=None)
        for number in self.accountant.book.active:
            bucket_s = self.accountant.book.buckets[number].away_since_s
            if bucket_s is not None:
                since_s = bucket_s if since_s is None else min(since_s, bucket_s)
        return None if since_s is None else self.loop.time() - since_s

    def away_s(self, bucket: Bucket) -> float:
        """How long this bucket has not been served by the store; begins to count now."""
        now_s = self.loop.time()
        if bucket.away_since_s is None:
            bucket.away_since_s = self._away_since_s.get(bucket.number, now_s)
        return now_s - bucket.away_since_s

    def template(self, ask: Ask) -> Template:
        """What its counters are; of a capped task as far as this gateway knows."""
        if ask.task is not None:
            return self.tasks.template(ask, ask.task, self.clock.now_ms())
        name = (ask.tenant.id, ask.key.id, ask.model, ask.work_class)
        template = self._templates.get(name)
        if template is None or template.tenant is not ask.tenant or template.key is not ask.key:
            if len(self._templates) >= MAX_TEMPLATES:
                self._templates.clear()
            fresh = Template(ask.tenant, ask.key, ask.model, ask.work_class)
            if template is not None and template.groups == fresh.groups:
                fresh.left, fresh.left_edges = template.left, template.left_edges
            template = self._templates[name] = fresh
        return template

    def _lost(self, numbers: Buckets) -> None:
        now_s = self.loop.time()
        for number in numbers:
            self._away_since_s.setdefault(number, now_s)

    def _found(self, numbers: Buckets) -> None:
        for number in numbers:
            self._away_since_s.pop(number, None)
            bucket = self.accountant.book.buckets[number]
            if not bucket.items:  # else it counts as away until its reservations are known again
                bucket.away_since_s = None
                bucket.shares = None


class _Attempt:
    """One call of `Reserver.reserve`, until it is answered."""

    __slots__ = (
        "ask",
        "bucket",
        "done",
        "hold",
        "not_after_ms",
        "plan",
        "reserver",
        "sends",
        "sequence",
        "template",
        "waits",
    )

    def __init__(
        self, reserver: Reserver, ask: Ask, template: Template, bucket: Bucket, done: Done
    ) -> None:
        self.reserver = reserver
        self.ask = ask
        self.template = template
        self.bucket = bucket
        self.done = done
        self.sends = 0
        self.not_after_ms = 0
        self.plan = template.plan
        self.waits = 0
        self.sequence: int | None = None
        self.hold: Hold | None = None

    def send(self) -> None:
        reserver, ask = self.reserver, self.ask
        now_ms = reserver.clock.now_ms()
        self.sends += 1
        task = ask.task
        self.not_after_ms = now_ms + NOT_AFTER_MS
        self.plan = self.template.at(now_ms, self.bucket.epoch)
        reserver.reservations.reserve(
            bucket=self.bucket.number,
            request_id=ask.request_id,
            not_after_ms=self.not_after_ms,
            info=as_text(ask.info),
            amounts=amounts_in_order(ask.amounts),
            plan=self.plan,
            done=self.answered,
            once=ask.once,
            only_known=ask.unless_known is not None,
            tenant_id=ask.tenant.id,
            lease_ms=ask.ttl_ms or LEASE_MS,
            task=None if task is None else claim_of(ask, task, self.template),
        )

    def answered(self, reply: object) -> None:
        if not isinstance(reply, list):
            if reply is NOT_SENT:
                self.away()
            else:
                self._failed(reply)
            return
        reserver, bucket = self.reserver, self.bucket
        reserver.clock.observe(reply[NOW_MS])
        verdict = reply[VERDICT]
        if verdict == b"OK":
            self.held(reply)
        elif verdict == b"NO":
            self._refused(reply)
        elif verdict == b"REBUILD":
            reserver.accountant.book.closed(bucket)
            self.away()
        elif verdict == b"EPOCH":
            reserver.accountant.book.observe(bucket, reply[EPOCH], None)
            bucket.is_open = True
            reserver.accountant.leases.register_soon(bucket)
            self._again()
        elif verdict == b"WINDOW":
            self.template.renew(reply[NOW_MS], self.bucket.epoch)
            self._again()
        elif verdict == b"LATE":
            self._again()
        elif verdict == b"FULL":
            bucket.is_full = True
            self.away()
        else:
            self._known(verdict, reply)

    def _failed(self, error: object) -> None:
        if wrote_nothing(error):
            self.bucket.is_read_only = True
            self.away()
        else:
            self.unsure(error)

    def _refused(self, reply: list[Any]) -> None:
        if not self.bucket.is_read_only:  # it wrote nothing, so it proves nothing
            self.reserver.accountant.book.served(self.bucket)
        self.done(refusal_in_reply(self.ask, self.template, self.reserver.returns, reply))

    def _known(self, verdict: bytes, reply: list[Any]) -> None:
        """Its idempotency key was used before, or may not be used now: nothing is held."""
        if verdict == KEPT:
            self.done(Kept(reply[KEPT_ID].decode(), reply[KEPT_ANSWER]))
        elif verdict in VERDICTS:
            self.done(refusal_of(verdict))
        elif verdict == NEW and self.ask.unless_known is not None:
            self.done(self.ask.unless_known)
        elif verdict == TOO_MANY:
            self.done(MANY_USES)
        elif self.ask.task is not None:
            self._of_task(self.ask.task, verdict, reply)
        else:
            self.unsure(reply)

    def _of_task(self, task: TaskAsk, verdict: bytes, reply: list[Any]) -> None:
        """Its task began elsewhere, or refuses it: nothing is held."""
        if verdict == MOVED:
            self.reserver.tasks.learn(self.ask.tenant.id, task, reply)
            self.template = self.reserver.template(self.ask)
            self._again()
        elif (refusal := refusal_in(task, verdict, reply)) is not None:
            self.done(refusal)
        else:
            self.unsure(reply)

    def _again(self) -> None:
        if self.sends < MAX_SENDS + (self.ask.task is not None):
            self.send()
        else:
            self.away()

    def held(self, reply: list[Any]) -> None:
        template, bucket, book = self.template, self.bucket, self.reserver.accountant.book
        book.observe(bucket, reply[EPOCH], reply[RESERVE_POS])
        book.served(bucket)
        returns = self.reserver.returns
        if not returns.is_idle:
            returns.admitted(self.ask.caller, reply[NOW_MS])
        left: list[int] = reply[LEFT]
        template.left, template.left_edges = left, template.edges
        now_ms = reply[NOW_MS]
        plan = self.plan.raw if now_ms < self.plan.stop_ms else None  # else it has other legs
        task = self.ask.task
        step = None if task is None else (reply[OK_STEP], read_end(reply[OK_END], task.task))
        self._open(reply[LEGS], reply[EPOCH], StoreMode.SHARED, now_ms, left, plan, step)

    def _open(
        self,
        legs: bytes,
        epoch: int,
        mode: StoreMode,
        now_ms: int,
        left: Sequence[int],
        plan: msgspec.Raw | None = None,
        step: tuple[int, TaskEnd] | None = None,
    ) -> None:
        ask, accountant = self.ask, self.reserver.accountant
        self.hold = Hold(
            request_id=ask.request_id,
            tenant_id=ask.tenant.id,
            bucket=self.bucket.number,
            epoch=epoch,
            legs=legs,
            mode=mode,
            reserved_at_ms=now_ms,
            work_class=ask.work_class,
            amounts=ask.amounts,
            has_gauge_limit=self.template.has_gauge_limit,
            rates=self.template.rates if left else NO_RATES,
            left=left,
            once=ask.once,
            expires_at_ms=now_ms + ask.ttl_ms if ask.ttl_ms else 0,
            task=ask.task.task if ask.task is not None and step else "",
            task_step=step[0] if step is not None else 0,
            task_end=step[1] if step is not None else None,
        )
        self.sequence = accountant.adopt(self.hold, ask.info, plan)
        accountant.gate.wait(self.sequence, self._opened)

    def _opened(self, is_written: bool) -> None:
        hold = self.hold
        if hold is None:
            return
        if is_written or hold.mode is StoreMode.SHARED:
            self.done(hold)
        elif self.sequence is not None and self.waits < DEGRADED_WAITS:
            self.waits += 1
            self.reserver.accountant.gate.wait(self.sequence, self._opened)
        else:
            self._void_and_refuse("The usage journal cannot be written; retry shortly.")

    def unsure(self, reply: object) -> None:
        """It may have been held: serve it under the same id, or end it as void before refusing."""
        log.warning("reserve of %s is unsure: %s", self.ask.request_id, reply)
        self.reserver.accountant.book.unsure_until(self.not_after_ms)
        if not self._admit_from_share():
            self._forget()

    def away(self) -> None:
        """Nothing was held: serve it from our share, or refuse."""
        if not self._admit_from_share():
            self.done(
                no_capacity(
                    "The shared limits cannot be reached; retry shortly.",
                    PARAM if self.ask.once and not self.ask.ttl_ms else "",
                )
            )

    def _admit_from_share(self) -> bool:
        ask, reserver, template = self.ask, self.reserver, self.template
        if ask.once or reserver.accountant.gate.is_stuck:
            return False  # it would have no memory at all
        away_s = reserver.away_s(self.bucket)
        outage = ask.outage
        mode = outage_mode(policy=outage.store_away, away_s=away_s, max_s=outage.max_s)
        if mode is not StoreMode.DEGRADED:
            return False
        if self.bucket.shares is None:
            self.bucket.shares = Shares(ratio=outage.share_ratio, gateways=reserver.gateways)
        now_ms = reserver.clock.now_ms()
        plan = template.at(now_ms, self.bucket.epoch)
        amounts = amounts_in_order(ask.amounts)
        if not self.bucket.shares.take(template.needs(amounts)):
            return False
        self._open(plan.legs(amounts), UNKNOWN_EPOCH, StoreMode.DEGRADED, now_ms, ())
        return True

    def _forget(self) -> None:
        """Make the reservation that may exist a void one."""
        ask, reserver, template = self.ask, self.reserver, self.template
        now_ms = reserver.clock.now_ms()
        plan = template.at(now_ms, self.bucket.epoch)
        self.hold = Hold(
            request_id=ask.request_id,
            tenant_id=ask.tenant.id,
            bucket=self.bucket.number,
            epoch=UNKNOWN_EPOCH,
            legs=plan.legs(amounts_in_order(ask.amounts)),
            mode=StoreMode.SHARED,
            reserved_at_ms=now_ms,
            work_class=ask.work_class,
            amounts=ask.amounts,
            once=ask.once,
            expires_at_ms=now_ms + ask.ttl_ms if ask.ttl_ms else 0,
        )
        reserver.accountant.adopt(self.hold, ask.info)
        self._void_and_refuse("The shared limits did not answer; retry shortly.")

    def _void_and_refuse(self, message: str) -> None:
        if self.hold is None:
            return
        self.reserver.accountant.void(
            self.hold,
            code=Reason.NO_CAPACITY,
            http_status=503,
            done=lambda: self.done(no_capacity(message)),
        )
