"""What the store keeps of a named resource's use, as its owner may learn it."""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from routing.contracts.usage import HoldInfo, decode_hold_info
from routing.gateway.uses import Settled, read_settled
from routing.store.packed import StoredHold
from routing.store.uses import ANSWER, EPOCH, INFO, LEGS

RECORD_FIELDS = (ANSWER, INFO, LEGS, EPOCH)  # of `store.uses.use_record`


@dataclass(frozen=True, slots=True)
class Found:
    """The first settle of a use, or what it takes to end it; with neither there is no such use."""

    settled: Settled | None = None
    info: HoldInfo | None = None
    raw_info: bytes = b""
    legs: bytes = b""
    epoch: int = 0
    expires_at_ms: int = 0  # 0: it is not held any more


def found_in(record: Sequence[bytes | None], hold: StoredHold | None, tenant_id: str) -> Found:
    """Read `RECORD_FIELDS` and the hold, if it lives. Another tenant's held use is not found.

    A settled one may be: its answer names its tenant.
    """
    if record[0]:
        return Found(settled=read_settled(record[0]))
    raw_info, legs = (hold.info, hold.legs) if hold else record[1:3]
    epoch = hold.epoch if hold else int(record[3] or 0)
    if not raw_info:
        return Found()
    try:
        info = decode_hold_info(raw_info)
    except msgspec.MsgspecError:
        return Found()
    if info.event.tenant_id != tenant_id or not info.ttl_ms:
        return Found()
    return Found(None, info, raw_info, legs or b"", epoch, hold.expiry_ms if hold else 0)
