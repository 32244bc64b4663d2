"""Ends the holds of gateways that are gone. One gateway at a time does it, for economy only.

Two sweepers at once do no harm: the settle script ends a hold once, and `w` only when its lease has
run out by the store's own clock.
"""

import asyncio
import logging
from functools import partial
from typing import Final

import hiredis
import msgspec

from routing.contracts.enums import SettleKind
from routing.contracts.usage import charge_of, decode_hold_info
from routing.decision.lost import lost_event
from routing.gateway.recovered import event_with_legs
from routing.store import keys
from routing.store.client import Buckets, StoreAwayError
from routing.store.clock import StoreClock
from routing.store.packed import read_hold
from routing.store.reservations import LEASE_MS, Reservations

log = logging.getLogger(__name__)

SWEEP_S: Final = 5.0
SWEEPER_LEASE_MS: Final = 12_000  # a dead sweeper is replaced within this and one round
QUIET_S: Final = 15.0  # after our own reconnect others may still be renewing: one lease
PER_BUCKET: Final = 200  # expired holds of one bucket ended in one round


class Sweeper:
    """Runs every `SWEEP_S` in the loop while `start`ed.

    `swept` counts the holds it has ended; `unreadable` those whose description could not be read
    and that therefore stay.
    """

    def __init__(self, reservations: Reservations, clock: StoreClock, *, owner: str) -> None:
        """`owner` names this process (gateway id and incarnation) in the sweeper's lease."""
        self._reservations = reservations
        self._store = reservations.store
        self._clock = clock
        self._owner = owner.encode()
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._quiet_until_s = 0.0
        self.is_sweeping = False
        self.swept = 0
        self.unreadable = 0
        self._store.on_connect.append(self._reconnected)

    def start(self) -> None:
        """Begin the rounds."""
        if self._store.is_ready:
            self._quiet_until_s = self._loop.time() + QUIET_S
        self._timer = self._loop.call_later(SWEEP_S, self._round)

    def stop(self) -> None:
        """End the rounds and let another gateway take over at once."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self.is_sweeping:
            self.is_sweeping = False
            self._store.command("DEL", keys.SWEEP_LEASE)

    def _reconnected(self, buckets: Buckets) -> None:
        self.is_sweeping = False
        self._quiet_until_s = self._loop.time() + QUIET_S

    def _round(self) -> None:
        self._timer = self._loop.call_later(SWEEP_S, self._round)
        if not self._store.is_ready or self._loop.time() < self._quiet_until_s:
            return
        self._store.command(
            "SET",
            keys.SWEEP_LEASE,
            self._owner,
            "NX",
            "GET",
            "PX",
            SWEEPER_LEASE_MS,
            callback=self._claimed,
        )

    def _claimed(self, reply: object) -> None:
        """SET NX GET answers with the owner there was: nobody, us, or another.

        With the lease's own master away, everybody sweeps what is left of a cluster.
        """
        is_away = isinstance(reply, StoreAwayError) and self._store.is_split
        self.is_sweeping = reply is None or reply == self._owner or is_away
        if not self.is_sweeping:
            return
        if reply == self._owner:
            self._store.command("PEXPIRE", keys.SWEEP_LEASE, SWEEPER_LEASE_MS)
        self.sweep()

    def sweep(self) -> None:
        """One round over all buckets."""
        now_ms = self._clock.now_ms()
        for bucket in range(keys.BUCKETS):
            self._store.command(
                "ZRANGEBYSCORE",
                keys.bucket_leases(bucket),
                "-inf",
                now_ms,
                "LIMIT",
                0,
                PER_BUCKET,
                callback=partial(self._expired, bucket),
            )

    def _expired(self, bucket: int, reply: object) -> None:
        if not isinstance(reply, list):
            return
        for raw in reply:
            request_id = raw.decode()
            self._store.command(
                "GET",
                keys.hold(bucket, request_id),
                callback=partial(self._read, bucket, request_id),
            )

    def _read(self, bucket: int, request_id: str, reply: object) -> None:
        if reply is None:
            # A lease without its hold: ended between two reads, or half restored.
            self._store.command("ZREM", keys.bucket_leases(bucket), request_id)
            return
        if not isinstance(reply, bytes):
            return
        now_ms = self._clock.now_ms()
        try:
            hold = read_hold(reply)
            event = lost_event(
                decode_hold_info(hold.info),
                out_so_far=hold.out_so_far,
                elapsed_s=max(now_ms - hold.expiry_ms + LEASE_MS, 0) / 1000,
                ended_at_ms=now_ms,
            )
            raw_event = event_with_legs(event, hold.legs)
        except (msgspec.MsgspecError, ValueError):
            self.unreadable += 1
            log.exception("hold of %s cannot be read; it stays", request_id)
            return
        self._reservations.settle(
            bucket=bucket,
            request_id=request_id,
            res_epoch=0,
            kind=SettleKind.SWEPT.value,
            charge=charge_of(SettleKind.SWEPT, event),
            event=raw_event,
            legs=hold.legs,
            done=partial(self._ended, request_id),
        )

    def _ended(self, request_id: str, reply: object) -> None:
        if isinstance(reply, list) and reply[0] == b"OK":
            self.swept += 1
            log.info("swept %s: its gateway is gone", request_id)
        elif isinstance(reply, hiredis.ReplyError):
            log.warning("sweep of %s failed: %s", request_id, reply)
