"""Reservations of an earlier run, as its journal tells of them."""

from typing import Final

import msgspec

from routing.contracts.enums import SettleKind, StoreMode
from routing.contracts.snapshot import bucket_of
from routing.contracts.usage import (
    UsageEvent,
    charge_of,
    decode_hold_info,
    decode_usage,
    encode_usage,
)
from routing.decision.lost import lost_event
from routing.decision.types import Amounts, Hold
from routing.gateway.buckets import Item
from routing.gateway.journal_file import Unfinished
from routing.gateway.leases import BEAT_S
from routing.gateway.once import is_remembered
from routing.gateway.uses import settled_answer
from routing.store.plans import decode_legs
from routing.store.uses import USE

_encode_json: Final = msgspec.json.Encoder().encode


def event_with_legs(event: UsageEvent, legs: bytes) -> bytes:
    """The event as JSON with its legs (msgpack, as the scripts keep them): its last field.

    Raises `msgspec.MsgspecError` when the legs cannot be read.
    """
    raw = encode_usage(event)
    if event.legs:
        return raw
    return b'%b,"legs":%b}' % (raw[:-1], _encode_json(decode_legs(legs)))


def recovered_item(found: Unfinished, now_ms: int) -> Item | None:
    """A reservation of an earlier run, ended: as its end record says, else as lost."""
    try:
        if not found.kind and (use := _still_used(found)) is not None:
            return use
        if found.kind:
            event = decode_usage(found.event)
            kind, charge, raw = SettleKind(found.kind), found.charge, found.event
        else:
            info = decode_hold_info(found.info)
            # Had it lived longer than a beat after its last sign of life, it would have said so.
            age_s = max(0, now_ms - info.event.started_at_ms) / 1000
            event = lost_event(
                info,
                out_so_far=found.out_so_far,
                elapsed_s=min(BEAT_S, age_s),
                ended_at_ms=now_ms,
            )
            kind = SettleKind.RECOVERED
            charge, raw = charge_of(kind, event), event_with_legs(event, found.legs)
        once = decode_hold_info(found.info).once if found.info else ""
    except (msgspec.MsgspecError, ValueError):
        return None
    hold = Hold(
        request_id=found.request_id,
        tenant_id=event.tenant_id,
        bucket=bucket_of(event.tenant_id) if found.bucket is None else found.bucket,
        epoch=found.res_epoch,
        legs=found.legs,
        mode=StoreMode.SHARED,
        reserved_at_ms=event.started_at_ms,
        work_class=event.work_class,
        amounts=Amounts(event.held_input_tokens, event.held_output_tokens, event.held_nanousd, 0),
        out_so_far=found.out_so_far,
        is_ended=True,
        once=once,
        expires_at_ms=int(once == USE),  # ended: when does not matter
    )
    item = Item(hold, found.info)
    item.answer = b"" if is_remembered(kind, event.status) else None
    if once == USE and kind is SettleKind.SETTLED:
        item.answer = settled_answer(event)
    item.kind, item.charge, item.event = kind, charge, raw
    item.file_number = found.file_number
    return item


def _still_used(found: Unfinished) -> Item | None:
    """A use of a resource that had not ended: its holder may settle it still, so it lives on."""
    info = decode_hold_info(found.info)
    if not info.ttl_ms:
        return None
    event = info.event
    hold = Hold(
        request_id=found.request_id,
        tenant_id=event.tenant_id,
        bucket=bucket_of(event.tenant_id) if found.bucket is None else found.bucket,
        epoch=found.res_epoch,
        legs=found.legs,
        mode=StoreMode.SHARED,
        reserved_at_ms=event.started_at_ms,
        work_class=event.work_class,
        amounts=Amounts(0, 0, event.held_nanousd, 0),
        has_gauge_limit=True,
        once=USE,
        expires_at_ms=event.started_at_ms + info.ttl_ms,
    )
    item = Item(hold, found.info)
    item.file_number = found.file_number
    return item
