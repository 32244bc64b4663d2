"""Overrides in this gateway: taken from the store when they change, asked for each request.

The rules are `decision.degrade`'s. An emptied store changes nothing: what is in force stays until
its own end, and the console writes the set again. The last set is kept on disk as well, so that a
gateway that starts while the store is away obeys it.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import hiredis
import msgspec

from routing.contracts.enums import Dimension, WindowKind
from routing.contracts.override import (
    Override,
    OverrideKind,
    decode_overrides,
    encode_overrides,
)
from routing.contracts.snapshot import ModelEntry, TenantEntry
from routing.decision.degrade import (
    applying,
    concurrency_limit,
    output_cap,
    paused,
    prompt_too_long,
    shed,
)
from routing.decision.limits import limit_name
from routing.decision.types import Reason, Refusal
from routing.gateway.exchange import Exchange
from routing.store import keys
from routing.store.client import StoreAwayError
from routing.store.cluster import Store

log = logging.getLogger(__name__)

MAX_BYTES: Final = 1024 * 1024  # a full set has about a fifth of it
_CONCURRENCY: Final = limit_name(Dimension.CONCURRENCY, WindowKind.NOW)


@dataclass(slots=True)
class Overrides:
    """The set in force. Everything here is in memory; an empty set costs one test a request."""

    items: tuple[Override, ...] = ()
    version: str = ""
    _capped: dict[str, tuple[TenantEntry, int, TenantEntry]] = field(default_factory=dict)

    def take(self, items: tuple[Override, ...], version: str) -> None:
        """A new set replaces the old one."""
        self.items, self.version = items, version
        self._capped.clear()

    def tenant(self, entry: TenantEntry, now_ms: int) -> TenantEntry:
        """The tenant with its temporary concurrency cap among its limits.

        So the store counts it over all gateways, and what runs already counts against it.
        """
        limit = concurrency_limit(self.items, entry.id, now_ms) if self.items else None
        if limit is None:
            return entry
        kept = self._capped.get(entry.id)
        if kept is not None and kept[0] is entry and kept[1] == limit.amount:
            return kept[2]
        capped = msgspec.structs.replace(entry, limits=(*entry.limits, limit))
        self._capped[entry.id] = (entry, limit.amount, capped)
        return capped

    def output_cap(self, exchange: Exchange, cap_tokens: int) -> int:
        """The bound on one answer; a lowered one is told in the answer's head."""
        if not self.items:
            return cap_tokens
        lowered = output_cap(self._of(exchange, OverrideKind.OUTPUT_CAP), cap_tokens)
        asked = exchange.call.ask.output_tokens
        if lowered < cap_tokens and (asked is None or asked > lowered):
            exchange.degraded = b"output_cap=%d" % lowered
        return lowered

    def stand_in_cap(self, exchange: Exchange, model: ModelEntry) -> int:
        """The bound on one answer of a model that stands in for the one asked for."""
        if not self.items:
            return model.output_cap_tokens
        found = self._of(exchange, OverrideKind.OUTPUT_CAP, model.name)
        return output_cap(found, model.output_cap_tokens)

    def refusal(self, exchange: Exchange) -> Refusal | None:
        """Why this request is refused now; None lets it go on. Needs its estimate."""
        if not self.items:
            return None
        now_ms, request_id = exchange.arrived_ms, exchange.request_id
        return (
            paused(self._of(exchange, OverrideKind.PAUSE), request_id, now_ms)
            or shed(self._of(exchange, OverrideKind.SHED), request_id)
            or prompt_too_long(
                self._of(exchange, OverrideKind.CONTEXT_CAP),
                exchange.input_tokens,
                now_ms,
            )
        )

    def explained(self, exchange: Exchange, refusal: Refusal) -> Refusal:
        """A refusal by the temporary concurrency cap also says why there is one."""
        if not self.items or refusal.reason is not Reason.CONCURRENCY_LIMITED:
            return refusal
        found = self._of(exchange, OverrideKind.CONCURRENCY_CAP)
        if not found or refusal.limit != _CONCURRENCY:
            return refusal
        tightest = min(found, key=lambda one: one.amount)
        text = f"{refusal.message} The cap of {tightest.amount} is temporary: {tightest.reason}"
        return replace(refusal, message=text)

    def _of(self, exchange: Exchange, kind: OverrideKind, model: str = "") -> list[Override]:
        return applying(
            self.items,
            kind,
            tenant_id=exchange.tenant.id,
            work_class=exchange.work_class,
            model=model or exchange.model_name,
            now_ms=exchange.arrived_ms,
        )


def read_disk(path: Path) -> tuple[Override, ...]:
    """The set that an earlier run kept; none (said in the log when it is damaged)."""
    try:
        with path.open("rb") as file:
            return decode_overrides(file.read(MAX_BYTES + 1))
    except FileNotFoundError:
        return ()
    except (OSError, msgspec.MsgspecError) as error:
        log.warning("the overrides on disk cannot be used: %s", error)
        return ()


class OverrideKeeper:
    """Keeps `overrides` equal to the set in the store: `poll` is one small read when unchanged.

    `taken(raw)` is called in the loop with the bytes of each new set, to be kept on disk.
    """

    def __init__(
        self,
        store: Store,
        overrides: Overrides,
        taken: Callable[[bytes], None] = lambda _raw: None,
    ) -> None:
        self._store = store
        self._overrides = overrides
        self._taken = taken
        self._refused = b""

    def restore(self, items: tuple[Override, ...], now_ms: int) -> None:
        """Obey what an earlier run kept and has not ended, until the store says otherwise."""
        items = tuple(one for one in items if one.ends_at_ms > now_ms)
        if items:
            self._overrides.take(items, encode_overrides(items)[1])
            log.info("%d overrides in force, from disk", len(items))

    async def poll(self) -> bool:
        """Whether a new set was taken. A store that is away or a damaged set changes nothing."""
        try:
            version = await self._store.call("GET", keys.OVERRIDES_VERSION)
            known = (self._overrides.version.encode(), self._refused)
            if not isinstance(version, bytes) or version in known:
                return False
            raw = await self._store.call("GET", keys.OVERRIDES)
        except (StoreAwayError, hiredis.ReplyError):
            return False
        if not isinstance(raw, bytes) or len(raw) > MAX_BYTES:
            return False
        try:
            items = decode_overrides(raw)
        except msgspec.MsgspecError as error:
            self._refused = version
            log.warning("overrides %s cannot be read, the last ones stay: %s", version, error)
            return False
        self._overrides.take(items, version.decode())
        self._taken(raw)
        log.info("%d overrides in force (%s)", len(items), self._overrides.version)
        return True
