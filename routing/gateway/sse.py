"""Server-sent events without I/O: cut anywhere, spelt any legal way, passed on unchanged.

`SseScanner.feed` takes body bytes and returns the bytes to relay: whole events, exactly as they
came. Everything before the first output token is kept back (so that a refusal may still be answered
elsewhere), and so is the usage event when the caller did not ask for it. In the steady state - one
`data:` line an event, whole events a read - nothing is decoded: a few byte searches a read.
"""

import re
from enum import StrEnum

from routing.gateway.dialects.events import DONE, OPENAI_LOOK, Look

MAX_EVENT_BYTES = 1 << 20  # one event, and all that is kept back before the first token
_BOM = b"\xef\xbb\xbf"
_END = re.compile(rb"(?:\r\n|\n|\r(?!\n))(?:\r\n|\n|\r(?!\n))")
_LINE = re.compile(rb"\r\n|\n|\r")
_END_BYTES_MAX = 4


class Fault(StrEnum):
    """What makes a stream unusable."""

    ERROR_EVENT = "error_event"
    CUT_OFF = "cut_off"
    TOO_LONG = "too_long"


class SseScanner:
    """State of one stream.

    `tokens` counts events that carried output, `others` those that carried something else (role,
    finish, usage, end; comments are nothing); `usage` is the payload of the last event with a
    usage object, `opening` that of the one with what is known before the output; `fault` says why
    the stream ended early, `error` then holds the error event's payload. `is_complete`: the
    end that a client can rely on was seen.
    """

    __slots__ = (
        "_held",
        "_held_bytes",
        "_holds_end",
        "_is_rest",
        "_keep_usage",
        "_look",
        "_partial",
        "_scan_from",
        "_started",
        "ending",
        "error",
        "fault",
        "has_done",
        "has_finish",
        "opening",
        "others",
        "tokens",
        "usage",
    )

    def __init__(
        self,
        *,
        keep_usage: bool,
        look: Look = OPENAI_LOOK,
        is_rest: bool = False,
        holds_end: bool = False,
    ) -> None:
        """`keep_usage`: the caller asked for the usage event, so it is passed on.

        `is_rest`: the stream goes on from another one, so its own beginning is left out.
        `holds_end`: the event that ends the answer stays in `ending`, for something to come before.
        """
        self._is_rest = is_rest
        self._keep_usage = keep_usage
        self._look = look
        self._holds_end = holds_end
        self.ending = b""
        self._partial = bytearray()
        self._scan_from = 0
        self._held: list[bytes] = []
        self._held_bytes = 0
        self._started = False
        self.tokens = 0
        self.others = 0
        self.usage = b""
        self.opening = b""
        self.error = b""
        self.fault: Fault | None = None
        self.has_done = False
        self.has_finish = False

    @property
    def is_complete(self) -> bool:
        """Whether the answer ended as it should."""
        return self.has_done or self.has_finish

    def feed(self, data: bytes) -> bytes:
        """Bytes to pass on now. After a fault nothing more is."""
        if self.fault is not None:
            return b""
        if self.tokens and not self._partial and data.startswith(b"data:"):
            events = _whole_events(data)
            if events and self._look.is_ordinary(data):
                self.tokens += events
                return data
        return self._split(data)

    def close(self) -> bytes:
        """The body ended: what was kept back, and a last event without its blank line."""
        out = b""
        if self._partial and self.fault is None:
            out = self._event(bytes(self._partial))
            self._partial.clear()
        if self._held and self.fault is None:
            out = self._release(out)
        return out

    def _split(self, data: bytes) -> bytes:
        partial = self._partial
        if partial:
            partial += data
            whole = partial
        else:
            whole = bytearray(data)
        out: list[bytes] = []
        start = 0
        for match in _END.finditer(whole, self._scan_from):
            passed = self._event(bytes(whole[start : match.end()]))
            start = match.end()
            if passed:
                out.append(passed)
            if self.fault is not None:
                return b"".join(out)
        rest = whole[start:]
        self._partial = rest
        self._scan_from = max(0, len(rest) - _END_BYTES_MAX + 1)
        if len(rest) > MAX_EVENT_BYTES or self._held_bytes > MAX_EVENT_BYTES:
            self.fault = Fault.TOO_LONG
            self._partial = bytearray()
            self._held = []
        return b"".join(out)

    def _event(self, raw: bytes) -> bytes:
        """Bytes to pass on for one whole event."""
        if not self._started:
            self._started = True
            raw = raw.removeprefix(_BOM)
        payload, is_error = _payload_of(raw)
        if payload is None:
            return raw if self.tokens else b""  # comments before the output are dropped
        if payload == DONE:
            self.has_done = True
            self.others += 1
            return self._end(raw)
        if self.tokens and not is_error and self._look.is_ordinary(payload):
            self.tokens += 1
            return raw
        return self._content(raw, payload, is_error=is_error)

    def _content(self, raw: bytes, payload: bytes, *, is_error: bool) -> bytes:
        seen = self._look.into(payload)
        if is_error or seen.is_error:
            return self._failed(payload)
        if seen.is_cut_off:
            self.fault = Fault.CUT_OFF
            self._held = []
            return b""
        self.has_finish = self.has_finish or seen.is_finish
        self.has_done = self.has_done or seen.is_end
        if seen.has_output:
            self.tokens += 1
        else:
            self.others += 1
        if seen.opens_usage:
            self.opening = payload
        if seen.has_usage:
            self.usage = payload
            if not seen.is_own and not self._keep_usage:
                return b""
        if seen.has_output or (seen.is_end and self._holds_end):
            return self._end(raw) if seen.is_end else self._release(raw)
        if self.tokens:
            return raw
        self._held.append(raw)
        self._held_bytes += len(raw)
        return b""

    def _failed(self, payload: bytes) -> bytes:
        self.fault = Fault.ERROR_EVENT
        self.error = payload
        self._held = []
        return b""

    def _end(self, raw: bytes) -> bytes:
        """What was kept back, and the event that ends the answer unless that is to wait."""
        if not self._holds_end:
            return self._release(raw)
        self.ending += raw
        return self._release(b"")

    def _release(self, raw: bytes) -> bytes:
        if not self._held:
            return raw
        held, self._held = self._held, []
        self._held_bytes = 0
        if self._is_rest:
            held = [event for event in held if self._ends_or_counts(event)]
        held.append(raw)
        return b"".join(held)

    def _ends_or_counts(self, raw: bytes) -> bool:
        """Whether an event that was held back says more than that an answer begins."""
        payload = _payload_of(raw)[0]
        if not payload:
            return False
        seen = self._look.into(payload)
        return seen.is_finish or seen.has_usage


def payloads_of(data: bytes) -> list[tuple[bytes, bytes]]:
    """(bytes, payload) of each whole event; the payload is empty where there is none."""
    found, start = [], 0
    for match in _END.finditer(data):
        raw = data[start : match.end()]
        found.append((raw, _payload_of(raw)[0] or b""))
        start = match.end()
    return found


def _whole_events(data: bytes) -> int:
    """How many events data that begins with `data:` is; 0 unless each is whole and one line."""
    if not data.endswith(b"\n\n") or b"\r" in data:
        return 0
    if data.find(b"\n") == len(data) - 2:
        return 1
    events = data.count(b"\n\n")
    is_plain = data.count(b"\n") == 2 * events and data.count(b"\n\ndata:") == events - 1
    return events if is_plain else 0


def _payload_of(raw: bytes) -> tuple[bytes | None, bool]:
    """(joined `data` lines or None, whether the event is named `error`)."""
    if raw.startswith(b"data:") and raw.find(b"\n") == len(raw) - 2 and b"\r" not in raw:
        return raw[5:].strip(), False
    data: list[bytes] = []
    is_error = False
    for line in _LINE.split(raw):
        name, _, value = line.partition(b":")
        if name == b"data":
            data.append(value.removeprefix(b" "))
        elif name == b"event" and value.strip() == b"error":
            is_error = True
    return (b"\n".join(data).strip() if data else None), is_error
