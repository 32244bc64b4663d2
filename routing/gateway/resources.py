"""Named resources: reserve, settle and renew one use, on the limits and prices of a model call.

No gateway runs a use: its hold lives in the store until it expires, and any gateway may settle it.
The one that reserved it keeps it in its journal, and the sweeper charges what nobody settled.
"""

import asyncio
import time
from collections.abc import Coroutine
from functools import partial
from typing import Final
from urllib.parse import unquote

import hiredis
import msgspec

from routing.contracts.enums import RequestStatus, StoreMode, UsageSource
from routing.contracts.resources import RESOURCE_PREFIX
from routing.contracts.usage import HoldInfo, UsageEvent, decode_hold_info, encode_hold_info
from routing.decision.types import Amounts, Hold, Reason, Refusal
from routing.gateway.ask import Ask
from routing.gateway.buckets import Item
from routing.gateway.denials import AWAY_RETRY_S
from routing.gateway.exchange import Client, Exchange, Step, new_request_id
from routing.gateway.http1 import Request, whole
from routing.gateway.kept_uses import RECORD_FIELDS, Found, found_in
from routing.gateway.names import bad_name, names_of
from routing.gateway.once import Kept
from routing.gateway.reply import JSON, dollars, identity_headers, rate_headers
from routing.gateway.uses import (
    MAX_LIFE_S,
    RenewBody,
    ReserveBody,
    SettleBody,
    Settled,
    find_resource,
    held_body,
    held_nanousd,
    read_body,
    read_settled,
    says_the_same,
    settle_body,
    settled_answer,
    settled_event,
    units_of,
)
from routing.gateway.walk import Walk
from routing.gateway.workflow import task_of
from routing.store import keys
from routing.store.client import StoreAwayError
from routing.store.packed import read_hold
from routing.store.reservations import (
    LEASE_RESULTS,
    NOT_AFTER_MS,
    RENEWED,
    VERDICT,
    lease_item,
)
from routing.store.uses import USE, use_record

RESOURCES: Final = b"/v1/resources/"
_ID_CHARS: Final = 36

_GONE = Refusal(
    Reason.NOT_FOUND, "There is no such use of yours, or it ended too long ago.", param="id"
)
_OVER = Refusal(
    Reason.NOT_FOUND, "This use has ended or expired: it cannot be renewed.", param="id"
)
_AWAY = Refusal(
    Reason.NO_CAPACITY, "The shared limits cannot be reached; retry shortly.", AWAY_RETRY_S
)
_OTHERWISE = Refusal(
    Reason.IDEMPOTENCY_MISMATCH, "This use was settled before, with other figures.", param="id"
)


class Resources:
    """The three calls, on the walk's snapshot, reserver and accountant."""

    def __init__(self, walk: Walk) -> None:
        """Nothing is kept here: uses live in the store and in the accountant's book."""
        self.walk = walk
        self._store = walk.reserver.reservations.store

    def begin(self, client: Client, request: Request, path: bytes) -> Exchange | None:
        """Take a whole request on; None if it is answered already."""
        walk = self.walk
        now_ms = walk.now_ms()
        request_id = new_request_id(now_ms)
        exchange = Exchange(client, request, walk.snapshot, request_id, (time.monotonic(), now_ms))
        caller = walk.callers.identify(request.headers, exchange.snapshot, now_ms)
        if isinstance(caller, Refusal):
            self._refuse(exchange, caller)
            return None
        exchange.tenant, exchange.key = caller
        walk.live.add(exchange)
        subject, _, verb = path[len(RESOURCES) :].rpartition(b"/")
        name = unquote(subject, errors="replace")
        if verb == b"reserve":
            self._reserve(exchange, name)
        elif verb in (b"settle", b"renew") and len(name) == _ID_CHARS and name.isascii():
            act = self._settle if verb == b"settle" else self._renew
            walk.spawn(self._guarded(exchange, act(exchange, name)))
        else:
            known = verb in (b"settle", b"renew")
            unknown = Refusal(Reason.NOT_FOUND, "There is nothing at this path.")
            self._refuse(exchange, _GONE if known else unknown)
        return exchange if exchange.step is not Step.ENDED else None

    # -- reserve

    def _reserve(self, exchange: Exchange, name: str) -> None:
        body = read_body(exchange.request.body, ReserveBody)
        if isinstance(body, Refusal):
            self._refuse(exchange, body)
            return
        wrong = bad_name(exchange.request.headers)
        if wrong is not None:
            self._refuse(exchange, wrong)
            return
        tenant, key = exchange.tenant, exchange.key
        price = find_resource(exchange.snapshot, tenant, key, name, exchange.arrived_ms)
        if isinstance(price, Refusal):
            self._refuse(exchange, price)
            return
        spend = held_nanousd(body, price)
        if isinstance(spend, Refusal):
            self._refuse(exchange, spend)
            return
        exchange.step = Step.RESERVING
        exchange.price = price
        exchange.model_name = RESOURCE_PREFIX + name
        exchange.work_class = key.work_class or tenant.default_class
        ttl_ms = int(body.ttl_s * 1000)
        event = self._skeleton(exchange, units_of(body), spend)
        info = HoldInfo(event, price, once=USE, ttl_ms=ttl_ms)
        ask = Ask(
            exchange.request_id,
            tenant,
            key,
            exchange.model_name,
            exchange.work_class,
            Amounts(0, 0, spend, 0),
            price,
            exchange.snapshot.policy.outage,
            encode_hold_info(info),
            once=USE,
            ttl_ms=ttl_ms,
            task=task_of(
                exchange.snapshot.policy,
                exchange.request.headers,
                tenant,
                exchange.model_name,
                None,
            ),
        )
        self.walk.reserver.reserve(ask, partial(self._reserved, exchange, info))

    def _skeleton(self, exchange: Exchange, units: int, spend: int) -> UsageEvent:
        names = names_of(exchange.request.headers)
        return UsageEvent(
            request_id=exchange.request_id,
            tenant_id=exchange.tenant.id,
            key_id=exchange.key.id,
            project_id=exchange.key.project_id,
            model_asked=exchange.model_name,
            model=exchange.model_name,
            status=RequestStatus.FAILED,
            usage_source=UsageSource.COUNTED,
            work_class=exchange.work_class,
            policy=exchange.snapshot.policy.label,
            price_version=exchange.price.version,
            gateway_id=self.walk.config.gateway_id,
            started_at_ms=exchange.arrived_ms,
            ended_at_ms=exchange.arrived_ms,
            units=units,
            held_nanousd=spend,
            attempts=1,
            task_id=names.task_id,
            task_kind=names.task_kind,
            step=names.step,
            session=names.session,
            parent_id=names.parent_id,
            task_outcome=names.outcome,
            task_score=names.score_ratio,
        )

    def _reserved(self, exchange: Exchange, info: HoldInfo, outcome: Hold | Kept | Refusal) -> None:
        if isinstance(outcome, Refusal):
            self._refuse(exchange, outcome)
        elif isinstance(outcome, Hold):
            if exchange.is_gone:  # nobody learns its id, so nobody would ever settle it
                self.walk.live.discard(exchange)
                exchange.step = Step.ENDED
                self.walk.accountant.void(outcome, code="client_closed", http_status=499)
                return
            exchange.hold = outcome
            self._answer(exchange, held_body(info, outcome.expires_at_ms))

    # -- settle

    async def _settle(self, exchange: Exchange, use_id: str) -> None:
        body = read_body(exchange.request.body, SettleBody)
        if isinstance(body, Refusal):
            self._refuse(exchange, body)
            return
        item = self._own(exchange, use_id)
        found = await self._find(exchange, use_id)
        item = item or self._own(exchange, use_id)
        settled = found.settled if found else None
        if settled is None and item is not None and item.answer:
            settled = read_settled(item.answer)
        if settled is not None:
            self._repeat(exchange, settled, body)
            return
        info = _info_of(item) if item is not None else (found.info if found else None)
        if info is None or info.event.tenant_id != exchange.tenant.id:
            self._refuse(exchange, _AWAY if found is None else _GONE)
            return
        event = settled_event(info, body, self.walk.now_ms())
        if isinstance(event, Refusal):
            self._refuse(exchange, event)
            return
        if item is None and found is not None:
            hold = self._adopt(exchange, info, found)
        elif item is not None and self.walk.accountant.reopen(item):
            hold = item.hold
        else:  # its end as not settled is under way
            self._refuse(exchange, _AWAY)
            return
        await self._end(hold, event)
        self._repeat(exchange, await self._first_answer(exchange, event), body)

    def _adopt(self, exchange: Exchange, info: HoldInfo, found: Found) -> Hold:
        """Look after another gateway's use from now on, so that its end reaches the ledger."""
        hold = Hold(
            request_id=info.event.request_id,
            tenant_id=info.event.tenant_id,
            bucket=exchange.tenant.bucket,
            epoch=found.epoch,
            legs=found.legs,
            mode=StoreMode.SHARED,
            reserved_at_ms=info.event.started_at_ms,
            work_class=info.event.work_class,
            amounts=Amounts(0, 0, info.event.held_nanousd, 0),
            has_gauge_limit=True,
            once=USE,
            expires_at_ms=found.expires_at_ms or 1,
        )
        self.walk.accountant.adopt(hold, found.raw_info)
        return hold

    async def _end(self, hold: Hold, event: UsageEvent) -> None:
        """End it and wait for the store's word (or for the journal's, while it is away)."""
        told: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.walk.accountant.end(
            hold,
            event,
            answer=settled_answer(event),
            done=lambda: None if told.done() else told.set_result(None),
        )
        await told

    async def _first_answer(self, exchange: Exchange, event: UsageEvent) -> Settled:
        """What the store keeps: another settle at the same moment may have been first."""
        found = await self._find(exchange, event.request_id)
        ours = read_settled(settled_answer(event))
        assert ours is not None  # noqa: S101 - it was encoded just now
        return found.settled if found is not None and found.settled is not None else ours

    def _repeat(self, exchange: Exchange, settled: Settled, body: SettleBody) -> None:
        if settled.tenant_id != exchange.tenant.id:
            self._refuse(exchange, _GONE)
        elif says_the_same(settled, body):
            cost = b"x-headrace-cost-usd: %b\r\n" % dollars(settled.spend_nanousd)
            self._answer(exchange, settle_body(settled), cost)
        else:
            self._refuse(exchange, _OTHERWISE)

    # -- renew

    async def _renew(self, exchange: Exchange, use_id: str) -> None:
        body = read_body(exchange.request.body, RenewBody)
        if isinstance(body, Refusal):
            self._refuse(exchange, body)
            return
        found = await self._find(exchange, use_id)
        info = found.info if found else None
        if found is None or info is None or not found.expires_at_ms:
            self._refuse(exchange, _AWAY if found is None else _OVER)
            return
        now_ms = self.walk.now_ms()
        latest_ms = info.event.started_at_ms + int(MAX_LIFE_S * 1000)
        expires_ms = max(found.expires_at_ms, min(now_ms + int(body.ttl_s * 1000), latest_ms))
        answered: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        self.walk.reserver.reservations.lease(
            bucket=exchange.tenant.bucket,
            not_after_ms=now_ms + NOT_AFTER_MS,
            items=[lease_item(use_id, 0, found.epoch, None, None, expires_ms)],
            done=lambda reply: None if answered.done() else answered.set_result(reply),
        )
        reply = await answered
        if not isinstance(reply, list) or reply[VERDICT] != b"OK":
            self._refuse(exchange, _AWAY)
            return
        if reply[LEASE_RESULTS] != [RENEWED]:
            self._refuse(exchange, _OVER)
            return
        item = self._own(exchange, use_id)
        if item is not None:
            item.hold.expires_at_ms = expires_ms
        self._answer(exchange, held_body(info, expires_ms))

    # -- what is known

    def _own(self, exchange: Exchange, use_id: str) -> Item | None:
        """The use in this gateway's book, if it is this tenant's."""
        bucket = self.walk.accountant.book.buckets[exchange.tenant.bucket]
        item = bucket.items.get(use_id)
        if item is None or item.hold.once != USE or item.hold.tenant_id != exchange.tenant.id:
            return None
        return item

    async def _find(self, exchange: Exchange, use_id: str) -> Found | None:
        """What the store knows of this tenant's use; None when it cannot be asked."""
        number = exchange.tenant.bucket
        try:
            record, hold, meta = await asyncio.gather(
                self._store.call("HMGET", use_record(number, use_id), *RECORD_FIELDS),
                self._store.call("GET", keys.hold(number, use_id)),
                self._store.call("HMGET", keys.bucket_meta(number), "epoch", "run_id", "state"),
            )
        except (StoreAwayError, hiredis.ReplyError):
            return None
        assert isinstance(record, list)  # noqa: S101 - HMGET answers with lists
        assert isinstance(meta, list)  # noqa: S101
        self._learn(number, meta)
        held = read_hold(hold) if isinstance(hold, bytes) else None
        return found_in(record, held, exchange.tenant.id)

    def _learn(self, number: int, meta: list[bytes | None]) -> None:
        """A bucket that this gateway has not used yet: settles may be sent at once."""
        book = self.walk.accountant.book
        bucket = book.buckets[number]
        epoch, run_id, state = meta
        if bucket.items or epoch is None or run_id is None or state != b"ready":
            return
        if run_id.decode() == self._store.run_id_of(number):
            book.observe(bucket, int(epoch), None)
            book.served(bucket)

    # -- answers

    async def _guarded(self, exchange: Exchange, work: Coroutine[object, object, None]) -> None:
        """A fault must not leave the caller waiting."""
        try:
            await work
        finally:
            if exchange.step is not Step.ENDED:
                self._refuse(exchange, _AWAY)

    def _answer(self, exchange: Exchange, body: bytes, headers: bytes = b"") -> None:
        exchange.step = Step.ENDED
        self.walk.live.discard(exchange)
        if exchange.is_gone:
            return
        lines = JSON + identity_headers(exchange) + rate_headers(exchange, self.walk.now_ms())
        keep_alive = exchange.request.keep_alive
        data = whole(200, lines + headers, body, keep_alive=keep_alive)
        exchange.client.finish(data, keep_alive=keep_alive)

    def _refuse(self, exchange: Exchange, refusal: Refusal) -> None:
        exchange.step = Step.ENDED
        self.walk.live.discard(exchange)
        self.walk.ends.refuse_plainly(exchange, refusal)


def _info_of(item: Item) -> HoldInfo | None:
    try:
        return decode_hold_info(item.info)
    except msgspec.MsgspecError:
        return None
