"""What one server-sent event of a stream says. `SseScanner` cuts, these look inside."""

from collections.abc import Callable
from typing import NamedTuple

import msgspec

NOTHING = (b"", b"null", b'""', b"[]", b"{}")
DONE = b"[DONE]"
# Ends that the engine itself made of an answer that goes on: one that shuts down says so, in a 200.
_CUT_OFF = (b'"abort"', b'"error"')


class Seen(NamedTuple):
    """`is_finish`: the answer ended as it should; `is_end`: nothing more belongs to it.

    `is_own`: it holds more than usage, so it is passed on to who did not ask for usage.
    `opens_usage`: it holds what is known of the usage before the output.
    """

    is_error: bool = False
    is_cut_off: bool = False
    has_usage: bool = False
    is_finish: bool = False
    is_own: bool = True
    has_output: bool = False
    opens_usage: bool = False
    is_end: bool = False


TEXT = Seen(has_output=True)


class Look(NamedTuple):
    """How a dialect's events are read.

    `into` a payload; `is_ordinary`: bytes of which no event needs a look inside, each is output.
    """

    into: Callable[[bytes], Seen]
    is_ordinary: Callable[[bytes], bool]


class _Peek(msgspec.Struct):
    choices: msgspec.Raw = msgspec.Raw(b"")
    usage: msgspec.Raw = msgspec.Raw(b"")
    error: msgspec.Raw = msgspec.Raw(b"")
    object: msgspec.Raw = msgspec.Raw(b"")


class _Choice(msgspec.Struct):
    delta: msgspec.Raw = msgspec.Raw(b"")
    text: msgspec.Raw = msgspec.Raw(b"")
    finish_reason: msgspec.Raw = msgspec.Raw(b"")


_peek = msgspec.json.Decoder(_Peek).decode
_choices = msgspec.json.Decoder(list[_Choice]).decode
_delta = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


def _openai_into(payload: bytes) -> Seen:
    """What an event says. Text that is not for us to judge counts as output.

    Half a surrogate pair, for one, is legal JSON text that a decoder refuses.
    """
    try:
        peek = _peek(payload)
        choices = _choices(peek.choices) if bytes(peek.choices) not in NOTHING else []
        has_output = any(_has_output(choice) for choice in choices)
    except msgspec.MsgspecError:
        return TEXT
    return Seen(
        bytes(peek.error) not in NOTHING or bytes(peek.object) == b'"error"',
        any(bytes(choice.finish_reason) in _CUT_OFF for choice in choices),
        bytes(peek.usage) not in NOTHING,
        any(bytes(choice.finish_reason) not in NOTHING for choice in choices),
        bool(choices),
        has_output,
    )


def _has_output(choice: _Choice) -> bool:
    """Whether a choice carries output: text, or a delta with more than a role."""
    if bytes(choice.text) not in NOTHING:
        return True
    delta = bytes(choice.delta)
    if delta in NOTHING:
        return False
    return any(
        name != "role" and bytes(value) not in NOTHING for name, value in _delta(delta).items()
    )


def _openai_is_ordinary(data: bytes) -> bool:
    """Whether no event in it needs a look inside: no error, end, finish or usage."""
    return (
        b'"error"' not in data
        and b'"finish_reason":"' not in data
        and b'"finish_reason": "' not in data
        and DONE not in data
        and (b'"usage"' not in data or _usage_is_null(data))
    )


def _usage_is_null(data: bytes) -> bool:
    return data.count(b'"usage"') == data.count(b'"usage":null') + data.count(b'"usage": null')


OPENAI_LOOK = Look(_openai_into, _openai_is_ordinary)


class _Named(msgspec.Struct):
    type: str = ""
    delta: msgspec.Raw = msgspec.Raw(b"")


class _StopReason(msgspec.Struct):
    stop_reason: str | None = None


_named = msgspec.json.Decoder(_Named).decode
_stop_reason = msgspec.json.Decoder(_StopReason).decode


def _messages_into(payload: bytes) -> Seen:
    """An event of the Messages API. A last `message_delta` without a reason was cut off."""
    try:
        event = _named(payload)
        if event.type == "message_delta":
            is_whole = _stop_reason(event.delta).stop_reason is not None
            return Seen(is_cut_off=not is_whole, has_usage=True, is_finish=is_whole)
    except msgspec.MsgspecError:
        return TEXT
    return Seen(
        is_error=event.type == "error",
        is_finish=event.type == "message_stop",
        is_end=event.type == "message_stop",
        has_output=event.type == "content_block_delta",
        opens_usage=event.type == "message_start",
    )


def _messages_is_ordinary(payload: bytes) -> bool:
    return payload.startswith((b'{"type":"content_block_delta"', b'{"type": "content_block_delta"'))


MESSAGES_LOOK = Look(_messages_into, _messages_is_ordinary)
_ENDS = ("response.completed", "response.incomplete")
_FAILED = ("error", "response.failed")


def _responses_into(payload: bytes) -> Seen:
    """An event of the Responses API: every `*.delta` is output, the last event has the usage."""
    try:
        kind = _named(payload).type
    except msgspec.MsgspecError:
        return TEXT
    return Seen(
        is_error=kind in _FAILED,
        is_cut_off=kind == "response.cancelled",
        has_usage=kind in _ENDS,
        is_finish=kind in _ENDS,
        is_end=kind in _ENDS,
        has_output=kind.endswith(".delta"),
    )


RESPONSES_LOOK = Look(_responses_into, lambda _payload: False)
