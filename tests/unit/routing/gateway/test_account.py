"""What a restarted gateway charges for a request that its journal left without an end."""

from uuid import uuid4

import msgspec

from routing.contracts.usage import decode_hold_info, decode_usage
from routing.decision.types import Amounts
from routing.gateway.journal_file import Unfinished
from routing.gateway.leases import BEAT_S
from routing.gateway.recovered import recovered_item
from tests.accounting import info

ITL_S = 0.02  # of `info`
LEGS = msgspec.msgpack.encode([])


def recovered_output(*, age_s: float, out_so_far: int = 0, held_output: int = 4096) -> int:
    request_id = str(uuid4())
    amounts = Amounts(10, held_output, 10**9, 0)
    packed = info(request_id, "acme", amounts)
    started_at_ms = decode_hold_info(packed).event.started_at_ms
    found = Unfinished(
        request_id=request_id,
        file_number=1,
        bucket=1,
        info=packed,
        legs=LEGS,
        out_so_far=out_so_far,
    )
    item = recovered_item(found, started_at_ms + int(age_s * 1000))
    assert item is not None
    return decode_usage(item.event).output_tokens


def test_output_since_the_last_sign_of_life_is_estimated_for_one_beat_at_most() -> None:
    one_beat = int(BEAT_S / ITL_S)
    assert recovered_output(age_s=2.0) == int(2.0 / ITL_S)
    assert recovered_output(age_s=3600.0) == one_beat
    assert recovered_output(age_s=3600.0, out_so_far=40) == 40 + one_beat
    assert recovered_output(age_s=3600.0, held_output=64) == 64, "never above the hold"
