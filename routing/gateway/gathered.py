"""An answer that is no stream: gathered within a bound, then an answer or the reason of none."""

from typing import Final

from routing.decision.retry import Verdict, judge, judge_cut_off, judge_event
from routing.gateway.dialects.failure import (
    error_code,
    error_message,
    is_cut_off,
    retry_after_s,
)
from routing.gateway.dialects.operation import Operation
from routing.gateway.dialects.usage import Usage, read_answer
from routing.gateway.http1 import ResponseReader

MAX_ANSWER_BYTES: Final = 32 << 20  # 32k tokens of JSON with log-probabilities fit
MAX_ERROR_BYTES: Final = 64 << 10


class Gathered:
    """The pieces of one body."""

    __slots__ = ("_pieces", "_size")

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._size = 0

    def add(self, piece: bytes, status: int) -> bool:
        """Keep a piece; False when there is more than an answer of that status may have."""
        self._size += len(piece)
        if self._size > (MAX_ANSWER_BYTES if status == 200 else MAX_ERROR_BYTES):
            return False
        if piece:
            self._pieces.append(piece)
        return True

    def body(self) -> bytes:
        """All of it."""
        return b"".join(self._pieces)


def judged(
    body: bytes, reader: ResponseReader, operation: Operation, *, now_s: float, is_draining: bool
) -> Verdict | Usage | None:
    """Why a whole body is no answer, or the usage of the answer that it is (None: it names none).

    `now_s` is the wall clock's, for a `Retry-After` that is a date.
    """
    if reader.status != 200:
        wait_s = retry_after_s(reader.headers, now_s)
        return judge(reader.status, error_message(body), wait_s, is_draining=is_draining)
    is_answer, usage = read_answer(body, operation.usage)
    if not is_answer:
        return judge_event(error_code(body), error_message(body), is_draining=is_draining)
    if operation.generates and (operation.is_cut_off or is_cut_off)(body):
        return judge_cut_off(has_output=usage is None or usage.output_tokens > 0)
    return usage
