"""Arguments and replies of the scripts that admit and end a capped task's calls.

They are the scripts of other calls with the task's record around them, in the same round trip. What
a task spends is in counters like all others (`decision.workflow`); the record has what counters
cannot say: when it began, which steps repeat, and the last of them for the refusal.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from routing.contracts.snapshot import TaskCaps
from routing.decision.workflow import Chain, Place, TaskAsk, TaskStep, in_order
from routing.store.keys import read_task, task_name
from routing.store.plans import as_text

TASKS_MAX: Final = 20_000  # live tasks of one tenant: at most 60 MB of records

MOVED: Final = b"TASK"  # the starts and the cap that the counters must have; nothing is held
OVER_WALL: Final = b"WALL"
OVER_REPEATS: Final = b"AGAIN"
TOO_MANY: Final = b"TASKS"
MOVED_START: Final = 3
MOVED_PARENT_START: Final = 4
MOVED_PARENT_CAP: Final = 5
FIGURE: Final = 3  # of WALL (ms) and AGAIN (times)
FIGURE_CHAIN: Final = 4
NO_CHAIN: Final = 9  # of NO, where a task's counter refused
OK_STEP: Final = 6  # of OK: the step's number

_encode: Final = msgspec.msgpack.Encoder().encode
_encode_caps: Final = msgspec.json.Encoder().encode
_decode_caps: Final = msgspec.json.Decoder(TaskCaps).decode
_Entry = tuple[int, str, str, str, int, str]
_decode_entry: Final = msgspec.msgpack.Decoder(_Entry).decode


@dataclass(frozen=True, slots=True)
class TaskClaim:
    """A call of a task: where the task and its parent are believed to begin, and what it holds.

    `first_group`: place of its own counter among those of the call, from 1.
    """

    ask: TaskAsk
    own: Place
    parent: Place
    first_group: int
    model: str
    held_nanousd: int


def claim_step(
    inner: msgspec.Raw, claim: TaskClaim, tenant_id: str, request_id: str, *, has_once: bool
) -> bytes:
    """Argument of `task_reserve`; `inner` is that of the script inside as msgpack text."""
    ask = claim.ask
    return _encode(
        (
            inner,
            tenant_id,
            task_name(ask.task),
            claim.own.start_ms,
            task_name(ask.parent),
            claim.parent.start_ms,
            claim.parent.spend_cap,
            ask.caps.max_wall_s * 1000,
            ask.life_ms,
            ask.caps.max_repeats or 0,
            as_text(ask.signature),
            TASKS_MAX,
            ask.kind,
            ask.spend_cap,
            claim.first_group,
            int(has_once),
            request_id,
            claim.model,
            ask.step,
            claim.held_nanousd,
            as_text(_encode_caps(ask.caps)),
        )
    )


def conclude_step(
    inner: msgspec.Raw,
    tenant_id: str,
    task: str,
    step: int,
    request_id: str,
    charged_nanousd: int | None,
) -> bytes:
    """Argument of `task_settle`; charged None is a void."""
    charged = -1 if charged_nanousd is None else charged_nanousd
    return _encode((inner, tenant_id, task_name(task), step, request_id, charged))


@dataclass(frozen=True, slots=True)
class TaskRecord:
    """A live task as the store knows it; `caps` None where only a child, or the ledger, told."""

    start_ms: int
    caps: TaskCaps | None


RECORD_FIELDS: Final = ("a", "m")


def read_record(fields: Sequence[bytes | None]) -> TaskRecord | None:
    """What `RECORD_FIELDS` of a task's record say; None of a task that is not live."""
    start, caps = fields
    if start is None:
        return None
    try:
        return TaskRecord(int(start), _decode_caps(caps) if caps else None)
    except (ValueError, msgspec.MsgspecError):
        return None


def read_chain(reply: Any) -> Chain:
    """The chain in a reply of `task_reserve`. An entry that cannot be read is left out."""
    start_ms, steps, parents, entries = reply
    found = []
    for packed, charge in entries:
        try:
            number, request_id, model, step, at_ms, held = _decode_entry(packed)
        except msgspec.MsgspecError:
            continue
        of, _, charged = charge.decode().partition(":")
        is_ended = of == str(number) and charged.isdigit()
        found.append(
            TaskStep(
                number, request_id, model, step, int(at_ms), int(held),
                int(charged) if is_ended else None,
            )
        )  # fmt: skip
    names = tuple(read_task(name.decode()) for name in parents)
    return Chain(start_ms, steps, names, in_order(found))
