"""Arguments and replies of the scripts that admit and end a capped task's calls.

They are the scripts of other calls with the task's record around them, in the same round trip. What
a task spends is in counters like all others (`decision.workflow`); the record has what counters
cannot say: when it began, which steps repeat, and the last of them for the refusal.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from routing.contracts.enums import TaskScope
from routing.contracts.snapshot import TaskCaps
from routing.decision.types import TaskEnd
from routing.decision.workflow import Above, Chain, Place, TaskAsk, TaskStep, in_order
from routing.store.keys import read_task, task_name
from routing.store.plans import as_text

TASKS_MAX: Final = 20_000  # live tasks of one tenant: at most 60 MB of records

MOVED: Final = b"TASK"  # its start and the tasks above, as the counters must be; nothing is held
OVER_WALL: Final = b"WALL"
OVER_REPEATS: Final = b"AGAIN"
TOO_MANY: Final = b"TASKS"
MOVED_START: Final = 3
MOVED_ABOVE: Final = 4
FIGURE: Final = 3  # of WALL (ms) and AGAIN (times)
FIGURE_CHAIN: Final = 4
FIGURE_WHOSE: Final = 5  # of WALL: empty for the call's own task
FIGURE_WALL_MS: Final = 6
NO_CHAIN: Final = 9  # of NO, where a task's counter refused
OK_STEP: Final = 6  # of OK: the step's number
OK_END: Final = 8  # of OK: whose time ends first, how long it is (ms), since when, all above

_encode: Final = msgspec.msgpack.Encoder().encode
_encode_caps: Final = msgspec.json.Encoder().encode
_decode_caps: Final = msgspec.json.Decoder(TaskCaps).decode
_Entry = tuple[int, str, str, str, int, str]
_decode_entry: Final = msgspec.msgpack.Decoder(_Entry).decode


@dataclass(frozen=True, slots=True)
class TaskClaim:
    """A call of a task: where that and those above are believed to begin, and what it holds.

    `first_group`: place of its own counter among those of the call, from 1.
    """

    ask: TaskAsk
    own: Place
    above: tuple[Above, ...]
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
            [(task_name(one.task), one.start_ms, one.spend_cap) for one in claim.above],
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


def read_above(reply: Any) -> tuple[Above, ...]:
    """The tasks above a call's own, as a reply has them."""
    return tuple(Above(read_task(name.decode()), start, cap) for name, start, cap in reply)


def read_end(reply: Any, task: str) -> TaskEnd:
    """The first time to end, as an OK of `task_reserve` has it; `task` is the call's own."""
    whose, wall_ms, start_ms, *above = reply
    parents = tuple(read_task(name.decode()) for name in above)
    return end_of(task, whose, wall_ms, start_ms, parents)


def end_of(
    task: str, whose: bytes, wall_ms: int, start_ms: int, parents: tuple[str, ...] = ()
) -> TaskEnd:
    """Whose time it is: empty is the call's own task."""
    scope = TaskScope.PARENT if whose else TaskScope.TASK
    name = read_task(whose.decode()) if whose else task
    return TaskEnd(scope, name, start_ms, wall_ms // 1000, parents)


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
