"""What callers call their work: task, step, session and outcome, from the headers they send."""

import re
from collections.abc import Callable
from difflib import get_close_matches
from typing import NamedTuple

from routing.contracts.enums import TaskOutcome
from routing.decision.types import Reason, Refusal
from routing.gateway.http1 import OUR_PREFIX, READ_HEADERS
from routing.gateway.refusal import bad_header
from routing.gateway.trace import TRACEPARENT, read_traceparent

MAX_TEXT = 64  # characters kept of a caller's session, task and step names
MAX_SCORE_CHARS = 24  # a double written out in full
STREAM_COST = b"x-headrace-stream-cost"
EXACT_MODEL = b"x-headrace-exact-model"
_STEP = re.compile(rb"([0-9]{1,6})/([0-9]{1,6})")


class Names(NamedTuple):
    """What a caller calls the work that a request belongs to; empty where it says nothing."""

    task_id: str = ""
    task_kind: str = ""
    step: str = ""
    session: str = ""
    parent_id: str = ""
    outcome: str = ""
    score_ratio: float | None = None


_OUTCOMES = frozenset(TaskOutcome)
_NO_NAMES = Names()
# Where a session is named, ours first; the rest is what common agents and proxies send.
_SESSION_HEADERS = (
    b"x-headrace-session-id", b"x-session-id", b"x-claude-code-session-id", b"x-opencode-session",
    b"x-session-affinity", b"x-litellm-session-id", b"session-id", b"session_id",
)  # fmt: skip
_TEXT_HEADERS = (
    b"x-headrace-task-id", b"x-headrace-task-kind", b"x-headrace-step",
    b"x-headrace-session-id", b"x-headrace-parent-id",
)  # fmt: skip
# Said of the task that the call names; without one each would be lost, and no cap sees it.
_OF_A_TASK = (b"x-headrace-task-outcome", b"x-headrace-task-score", b"x-headrace-parent-id")
_OUR_HEADERS = frozenset((*_TEXT_HEADERS, *_OF_A_TASK))
_JUDGED = _OUR_HEADERS | {STREAM_COST, EXACT_MODEL, OUR_PREFIX}
_KNOWN = sorted(
    name.removeprefix(OUR_PREFIX).decode() for name in READ_HEADERS if name.startswith(OUR_PREFIX)
)
NAME_HEADERS = _OUR_HEADERS | {TRACEPARENT, *_SESSION_HEADERS}


def names_of(headers: dict[bytes, bytes]) -> Names:
    """The caller's names in its headers; most requests have none."""
    if NAME_HEADERS.isdisjoint(headers):
        return _NO_NAMES
    return Names(
        _text(headers.get(b"x-headrace-task-id")) or _trace(headers.get(TRACEPARENT)),
        _text(headers.get(b"x-headrace-task-kind")),
        _text(headers.get(b"x-headrace-step")),
        next((text for name in _SESSION_HEADERS if (text := _text(headers.get(name)))), ""),
        _text(headers.get(b"x-headrace-parent-id")),
        _outcome(headers.get(b"x-headrace-task-outcome")),
        _score(headers.get(b"x-headrace-task-score")),
    )


def bad_name(headers: dict[bytes, bytes]) -> Refusal | None:
    """Why these headers do not say of a caller's work what they should; None if they do.

    Ours alone are judged: the others are other people's, and only read where they fit.
    """
    if _JUDGED.isdisjoint(headers):
        return None
    if (unknown := headers.get(OUR_PREFIX)) is not None:
        return _no_header(unknown.decode("latin-1")[:MAX_TEXT])
    for header in _TEXT_HEADERS:
        raw = headers.get(header)
        if raw and _text(raw).encode() != raw:
            wanted = f"at most {MAX_TEXT} printable ASCII characters"
            return bad_header(header.decode(), wanted)
    for header, is_read, wanted in _CHECKS:
        raw = headers.get(header)
        if raw and not is_read(raw):
            return bad_header(header.decode(), wanted)
    return _of_no_task(headers)


def _no_header(name: str) -> Refusal:
    """A slip of the pen would cost the caller what the header asks for, so it is told."""
    prefix = OUR_PREFIX.decode()
    near = get_close_matches(name.removeprefix(prefix), _KNOWN, n=1) or _KNOWN
    instead = f"{'do you mean' if len(near) == 1 else 'there are'} {prefix}"
    instead += f"{', '.join(near)}{'?' if len(near) == 1 else '.'}"
    return Refusal(Reason.INVALID_REQUEST, f"There is no header {name}: {instead}", param=name)


def _of_no_task(headers: dict[bytes, bytes]) -> Refusal | None:
    """What is said of a task is lost unless the call says which task."""
    said = next((header for header in _OF_A_TASK if headers.get(header)), None)
    if said is None:
        return None
    task_id = names_of(headers).task_id
    if not task_id:
        return bad_header(said.decode(), "sent with x-headrace-task-id, or with a traceparent")
    if headers.get(b"x-headrace-parent-id") == task_id.encode():
        return bad_header("x-headrace-parent-id", "another task than the call's own")
    return None


def _is_step(raw: bytes) -> bool:
    found = _STEP.fullmatch(raw)
    return found is not None and 1 <= int(found[1]) <= int(found[2])


def _trace(raw: bytes | None) -> str:
    """Trace id of a `traceparent`: all calls of a traced workflow carry the same one."""
    parent = read_traceparent(raw)
    return "" if parent is None else f"{parent.trace_id:032x}"


def _outcome(raw: bytes | None) -> str:
    """`success` or `failure`; anything else says nothing."""
    text = _text(raw)
    return text if text in _OUTCOMES else ""


def _score(raw: bytes | None) -> float | None:
    """A ratio from 0 to 1; anything else is unknown."""
    try:
        score = float(raw) if raw and len(raw) <= MAX_SCORE_CHARS else None
    except ValueError:
        return None
    return score if score is not None and 0 <= score <= 1 else None


def _text(raw: bytes | None) -> str:
    """A caller's name for something, printable and short."""
    if not raw:
        return ""
    text = raw.decode("latin-1")[:MAX_TEXT]
    return text if text.isascii() and text.isprintable() else ""


_CHECKS: tuple[tuple[bytes, Callable[[bytes], bool], str], ...] = (
    (b"x-headrace-task-outcome", lambda raw: bool(_outcome(raw)), " or ".join(TaskOutcome)),
    (b"x-headrace-task-score", lambda raw: _score(raw) is not None, "a number from 0 to 1"),
    (b"x-headrace-step", _is_step, "k/n, such as 2/5: step k of n, from 1 to n"),
    (STREAM_COST, lambda raw: raw.lower() in (b"true", b"false"), "true or false"),
    (EXACT_MODEL, lambda raw: raw.lower() in (b"true", b"false"), "true or false"),
)
