"""Arguments of the reserve and the settle script: a batch of items, and the plans that they share.

One msgpack array whose text is *str*: the server's decoder rejects *bin*. Bytes that are ready
(plans, legs, descriptions, events) are spliced in, not decoded and encoded again. An item that runs
inside another script (`store.once`, `store.uses`) is a batch of one.
"""

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

import msgspec

STREAM_MAX: Final = 20_000  # entries a bucket may queue for the ledger; then reserve answers FULL

_encode: Final = msgspec.msgpack.Encoder().encode


class ReserveItem(NamedTuple):
    """One reservation: `plan` is a `Plan.raw`, `info` and `legs` are msgpack texts (`as_text`)."""

    plan: msgspec.Raw
    request_id: str
    not_after_ms: int
    lease_ms: int
    info: msgspec.Raw
    amounts: Sequence[int]
    legs: msgspec.Raw


class SettleItem(NamedTuple):
    """One end; `event` and `legs` are msgpack texts.

    `plan` (a `Plan.raw`) and `amounts` are what the legs came of, where that is known.
    """

    tag: str
    plan: msgspec.Raw | None
    request_id: str
    res_epoch: int
    kind: str
    charge: dict[str, int]
    event: msgspec.Raw
    legs: msgspec.Raw
    amounts: Sequence[int] = ()


def reserve_argument(
    run_id: str, items: Iterable[ReserveItem], *, stream_max: int | None = None
) -> bytes:
    """What `reserve.lua` reads; its reply has one of each item, in their order.

    Neighbours with one plan (told apart by identity: templates keep theirs) become one run.
    """
    most = STREAM_MAX if stream_max is None else stream_max
    runs: list[tuple[msgspec.Raw, list[tuple[object, ...]]]] = []
    last: msgspec.Raw | None = None
    for item in items:
        if item[0] is not last:
            last = item[0]
            runs.append((last, []))
        runs[-1][1].append(item[1:])
    return _encode((run_id, most, runs))


def settle_argument(run_id: str, items: Iterable[SettleItem]) -> bytes:
    """What `settle.lua` reads; its reply has one of each item, in their order.

    Neighbours of one bucket with one plan, or without any, become one run.
    """
    runs: list[tuple[str, msgspec.Raw | bool, list[tuple[object, ...]]]] = []
    last: tuple[str, msgspec.Raw | None] | None = None
    for item in items:
        if last is None or item[1] is not last[1] or item[0] != last[0]:
            last = item[:2]
            runs.append((item[0], item[1] or False, []))
        runs[-1][2].append(item[2:])
    return _encode((run_id, runs))
