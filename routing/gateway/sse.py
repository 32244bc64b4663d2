"""Server-sent events without I/O: cut anywhere, spelt any legal way, passed on unchanged.

`SseScanner.feed` takes body bytes and returns the bytes to relay: whole events, exactly as they
came. Everything before the first output token is kept back (so that a refusal may still be answered
elsewhere), and so is the usage event when the caller did not ask for it. In the steady state - one
`data:` line an event, whole events a read - nothing is decoded: a few byte searches a read.
"""

import re
from enum import StrEnum
from typing import NamedTuple

import msgspec

MAX_EVENT_BYTES = 1 << 20  # one event, and all that is kept back before the first token
_BOM = b"\xef\xbb\xbf"
_END = re.compile(rb"(?:\r\n|\n|\r(?!\n))(?:\r\n|\n|\r(?!\n))")
_LINE = re.compile(rb"\r\n|\n|\r")
_END_BYTES_MAX = 4
_DONE = b"[DONE]"
_NOTHING = (b"", b"null", b'""', b"[]", b"{}")
# Ends that the engine itself made of an answer that goes on: one that shuts down says so, in a 200.
_CUT_OFF = (b'"abort"', b'"error"')


class Fault(StrEnum):
    """What makes a stream unusable."""

    ERROR_EVENT = "error_event"
    CUT_OFF = "cut_off"
    TOO_LONG = "too_long"


class _Peek(msgspec.Struct):
    choices: msgspec.Raw = msgspec.Raw(b"")
    usage: msgspec.Raw = msgspec.Raw(b"")
    error: msgspec.Raw = msgspec.Raw(b"")
    object: msgspec.Raw = msgspec.Raw(b"")


class _Choice(msgspec.Struct):
    delta: msgspec.Raw = msgspec.Raw(b"")
    text: msgspec.Raw = msgspec.Raw(b"")
    finish_reason: msgspec.Raw = msgspec.Raw(b"")


class _Seen(NamedTuple):
    is_error: bool
    is_cut_off: bool
    has_usage: bool
    is_finish: bool
    has_choices: bool
    has_output: bool


_peek = msgspec.json.Decoder(_Peek).decode
_choices = msgspec.json.Decoder(list[_Choice]).decode
_delta = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


class SseScanner:
    """State of one stream.

    `tokens` counts events that carried output, `others` those that carried something else (role,
    finish, usage, end; comments are nothing); `usage` is the payload of the last event with a
    usage object; `fault` says why the stream ended early, `error` then holds the error event's
    payload. `is_complete`: the end that a client can rely on was seen.
    """

    __slots__ = (
        "_held",
        "_held_bytes",
        "_keep_usage",
        "_partial",
        "_scan_from",
        "_started",
        "error",
        "fault",
        "has_done",
        "has_finish",
        "others",
        "tokens",
        "usage",
    )

    def __init__(self, *, keep_usage: bool) -> None:
        """`keep_usage`: the caller asked for the usage event, so it is passed on."""
        self._keep_usage = keep_usage
        self._partial = bytearray()
        self._scan_from = 0
        self._held: list[bytes] = []
        self._held_bytes = 0
        self._started = False
        self.tokens = 0
        self.others = 0
        self.usage = b""
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
            if events and _is_ordinary(data):
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
            out = b"".join(self._held) + out
            self._held = []
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
        if payload == _DONE:
            self.has_done = True
            self.others += 1
            return self._release(raw)
        if self.tokens and not is_error and _is_ordinary(payload):
            self.tokens += 1
            return raw
        return self._content(raw, payload, is_error=is_error)

    def _content(self, raw: bytes, payload: bytes, *, is_error: bool) -> bytes:
        seen = _look_into(payload)
        if is_error or seen.is_error:
            return self._failed(payload)
        if seen.is_cut_off:
            self.fault = Fault.CUT_OFF
            self._held = []
            return b""
        self.has_finish = self.has_finish or seen.is_finish
        if seen.has_output:
            self.tokens += 1
        else:
            self.others += 1
        if seen.has_usage:
            self.usage = payload
            if not seen.has_choices and not self._keep_usage:
                return b""
        if seen.has_output:
            return self._release(raw)
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

    def _release(self, raw: bytes) -> bytes:
        if not self._held:
            return raw
        held, self._held = self._held, []
        held.append(raw)
        self._held_bytes = 0
        return b"".join(held)


def _whole_events(data: bytes) -> int:
    """How many events data that begins with `data:` is; 0 unless each is whole and one line."""
    if not data.endswith(b"\n\n") or b"\r" in data:
        return 0
    if data.find(b"\n") == len(data) - 2:
        return 1
    events = data.count(b"\n\n")
    is_plain = data.count(b"\n") == 2 * events and data.count(b"\n\ndata:") == events - 1
    return events if is_plain else 0


def _is_ordinary(data: bytes) -> bool:
    """Whether no event in it needs a look inside: no error, end, finish or usage."""
    return (
        b'"error"' not in data
        and b'"finish_reason":"' not in data
        and b'"finish_reason": "' not in data
        and _DONE not in data
        and (b'"usage"' not in data or _usage_is_null(data))
    )


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


def _look_into(payload: bytes) -> _Seen:
    """What an event says. Text that is not for us to judge counts as output.

    Half a surrogate pair, for one, is legal JSON text that a decoder refuses.
    """
    try:
        peek = _peek(payload)
        choices = _choices(peek.choices) if bytes(peek.choices) not in _NOTHING else []
        has_output = any(_has_output(choice) for choice in choices)
    except msgspec.MsgspecError:
        return _Seen(False, False, False, False, True, True)
    return _Seen(
        bytes(peek.error) not in _NOTHING or bytes(peek.object) == b'"error"',
        any(bytes(choice.finish_reason) in _CUT_OFF for choice in choices),
        bytes(peek.usage) not in _NOTHING,
        any(bytes(choice.finish_reason) not in _NOTHING for choice in choices),
        bool(choices),
        has_output,
    )


def _has_output(choice: _Choice) -> bool:
    """Whether a choice carries output: text, or a delta with more than a role."""
    if bytes(choice.text) not in _NOTHING:
        return True
    delta = bytes(choice.delta)
    if delta in _NOTHING:
        return False
    return any(
        name != "role" and bytes(value) not in _NOTHING for name, value in _delta(delta).items()
    )


def _usage_is_null(data: bytes) -> bool:
    return data.count(b'"usage"') == data.count(b'"usage":null') + data.count(b'"usage": null')
