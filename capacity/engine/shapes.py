"""The Messages and the Responses API over the same chat calls: bodies, answers and events."""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import msgspec

from capacity.engine.answers import (
    ENGINE_DIED,
    StreamWriter,
    died_event,
    encode,
    error_body,
    usage_of,
    whole_answer,
)
from capacity.engine.asks import (
    Ask,
    AskError,
    ChatBody,
    Limits,
    Message,
    ask_for,
    check_common,
    conversation,
    read_chat,
    read_completion,
)
from capacity.engine.loop import Call
from capacity.simulation.requests import Finish


class Writer(Protocol):
    """Events of one streamed call."""

    def events(self) -> bytes:
        """Events for all tokens that are ready and unwritten."""

    def end(self) -> bytes:
        """What follows the last token."""


class Shape(NamedTuple):
    """How an endpoint's bodies are read and its answers are written."""

    id_prefix: str
    read: Callable[[bytes, Limits], Ask]
    whole: Callable[[Call, int, int], bytes]
    writer: Callable[[Call, int, int], Writer]
    error: Callable[[int, str, str, str | None], bytes] = error_body
    died: Callable[[], bytes] = died_event


class MessagesBody(msgspec.Struct):
    """POST /v1/messages, and its count of tokens."""

    messages: list[Message]
    model: str | None = None
    max_tokens: int | None = None
    system: str | list[dict[str, Any]] | None = None
    stream: bool | None = False
    tools: msgspec.Raw = msgspec.Raw(b"")
    cache_salt: str | None = None


class ResponsesBody(msgspec.Struct):
    """POST /v1/responses."""

    input: str | list[Message]
    model: str | None = None
    max_output_tokens: int | None = None
    instructions: str | None = None
    stream: bool | None = False
    tools: msgspec.Raw = msgspec.Raw(b"")
    cache_salt: str | None = None
    priority: int = 0


_messages = msgspec.json.Decoder(MessagesBody).decode
_responses = msgspec.json.Decoder(ResponsesBody).decode


def _flat(messages: list[Message]) -> list[Message]:
    """Parts of every name that hold text become text parts; others are left to be refused."""
    for message in messages:
        if isinstance(message.content, list):
            message.content = [
                {"type": "text", "text": part["text"]} if "text" in part else part
                for part in message.content
            ]
    return messages


def messages_in(raw: bytes) -> MessagesBody:
    """A checked body. Raises `AskError`."""
    try:
        body = _messages(raw)
    except msgspec.MsgspecError as error:
        raise AskError(400, str(error)) from error
    system = body.system
    if isinstance(system, list):
        system = "".join(str(part.get("text", "")) for part in system)
    lead = [Message("system", system)] if system else []
    body.messages = _flat([*lead, *body.messages])
    return body


def read_messages(raw: bytes, limits: Limits) -> Ask:
    """A call of the Messages API. Raises `AskError`."""
    body = messages_in(raw)
    if body.max_tokens is None:
        raise AskError(400, "max_tokens: Field required")
    return _ask(
        ChatBody(
            messages=body.messages,
            model=body.model,
            max_tokens=body.max_tokens,
            stream=body.stream,
            cache_salt=body.cache_salt,
            tools=body.tools,
        ),
        limits,
    )


def read_responses(raw: bytes, limits: Limits) -> Ask:
    """A call of the Responses API. Raises `AskError`."""
    try:
        body = _responses(raw)
    except msgspec.MsgspecError as error:
        raise AskError(400, str(error)) from error
    listed = [Message("user", body.input)] if isinstance(body.input, str) else body.input
    lead = [Message("system", body.instructions)] if body.instructions else []
    return _ask(
        ChatBody(
            messages=_flat([*lead, *listed]),
            model=body.model,
            max_tokens=body.max_output_tokens,
            stream=body.stream,
            cache_salt=body.cache_salt,
            priority=body.priority,
            tools=body.tools,
        ),
        limits,
    )


def _ask(body: ChatBody, limits: Limits) -> Ask:
    check_common(body, limits)
    prompt = conversation(body.messages, bytes(body.tools))
    return ask_for(body, [prompt], body.max_tokens, limits, is_chat=True)


def _event(kind: str, **fields: Any) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), encode({"type": kind} | fields))


def _messages_usage(call: Call, block_tokens: int) -> dict[str, int]:
    made = call.flights[0].ready_tokens
    found = usage_of(call, block_tokens, made_tokens=made, details=True)
    cached = found["prompt_tokens_details"]["cached_tokens"]
    written = found["prompt_tokens_details"]["created_cache_tokens"] or 0
    return {
        "input_tokens": found["prompt_tokens"] - cached - written,
        "output_tokens": made,
        "cache_read_input_tokens": cached,
        "cache_creation_input_tokens": written,
    }


def _stop_reason(call: Call) -> str:
    is_cut = call.flights[0].generation.finish is Finish.LENGTH
    return "max_tokens" if is_cut else "end_turn"


def _message(call: Call, **fields: Any) -> dict[str, Any]:
    base = {"id": call.id, "type": "message", "role": "assistant", "model": call.ask.model}
    return base | {"content": [], "stop_reason": None, "stop_sequence": None} | fields


def whole_message(call: Call, created: int, block_tokens: int) -> bytes:
    """The body of a message that does not stream."""
    text = {"type": "text", "text": call.flights[0].unwritten()}
    usage = _messages_usage(call, block_tokens)
    return encode(_message(call, content=[text], stop_reason=_stop_reason(call), usage=usage))


class MessagesWriter:
    """Events of a streamed message."""

    __slots__ = ("_block_tokens", "_call", "_has_begun")

    def __init__(self, call: Call, created: int, block_tokens: int) -> None:
        self._call = call
        self._block_tokens = block_tokens
        self._has_begun = False

    def events(self) -> bytes:
        """Events for all tokens that are ready and unwritten."""
        flight = self._call.flights[0]
        if flight.ready_tokens == flight.written_tokens:
            return b""
        lead = b""
        if not self._has_begun:
            self._has_begun = True
            usage = _messages_usage(self._call, self._block_tokens) | {"output_tokens": 0}
            block = {"type": "text", "text": ""}
            lead = _event("message_start", message=_message(self._call, usage=usage))
            lead += _event("content_block_start", index=0, content_block=block)
        delta = {"type": "text_delta", "text": flight.unwritten()}
        return lead + _event("content_block_delta", index=0, delta=delta)

    def end(self) -> bytes:
        """The reason of the end, the usage, and the end itself."""
        call = self._call
        delta = {"stop_reason": _stop_reason(call), "stop_sequence": None}
        usage = _messages_usage(call, self._block_tokens)
        return (
            _event("content_block_stop", index=0)
            + _event("message_delta", delta=delta, usage=usage)
            + _event("message_stop")
        )


def messages_error(status: int, message: str, kind: str, param: str | None = None) -> bytes:
    """The Messages API's error object."""
    return encode({"type": "error", "error": {"type": kind, "message": message}})


def message_died() -> bytes:
    """What a live stream gets when the engine stops under it."""
    return _event("error", error={"type": "internal_error", "message": ENGINE_DIED})


def _response(call: Call, created: int, text: str | None, block_tokens: int) -> dict[str, Any]:
    """A response object; without text it is one that has only begun."""
    is_cut = call.flights[0].generation.finish is Finish.LENGTH
    body: dict[str, Any] = {
        "id": call.id,
        "object": "response",
        "created_at": created,
        "model": call.ask.model,
        "status": "in_progress" if text is None else "incomplete" if is_cut else "completed",
        "output": [] if text is None else [_item(call, text)],
        "error": None,
        "incomplete_details": {"reason": "max_output_tokens"} if text and is_cut else None,
        "instructions": None,
        "metadata": None,
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "usage": None,
    }
    if text is not None:
        made = call.flights[0].ready_tokens
        found = usage_of(call, block_tokens, made_tokens=made, details=True)
        details = found["prompt_tokens_details"]
        body["usage"] = {
            "input_tokens": found["prompt_tokens"],
            "input_tokens_details": {
                "cached_tokens": details["cached_tokens"],
                "cache_write_tokens": details["created_cache_tokens"] or 0,
            },
            "output_tokens": made,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": found["total_tokens"],
        }
    return body


def _item(call: Call, text: str) -> dict[str, Any]:
    part: dict[str, Any] = {"type": "output_text", "text": text, "annotations": []}
    item = {"id": f"msg_{call.id}", "type": "message", "role": "assistant"}
    return item | {"status": "completed", "content": [part]}


def whole_response(call: Call, created: int, block_tokens: int) -> bytes:
    """The body of a response that does not stream."""
    return encode(_response(call, created, call.flights[0].unwritten(), block_tokens))


class ResponsesWriter:
    """Events of a streamed response."""

    __slots__ = ("_block_tokens", "_call", "_created", "_number", "_text")

    def __init__(self, call: Call, created: int, block_tokens: int) -> None:
        self._call = call
        self._created = created
        self._block_tokens = block_tokens
        self._number = 0
        self._text: list[str] = []

    def _event(self, kind: str, **fields: Any) -> bytes:
        self._number += 1
        return _event(kind, sequence_number=self._number - 1, **fields)

    def events(self) -> bytes:
        """Events for all tokens that are ready and unwritten."""
        flight = self._call.flights[0]
        if flight.ready_tokens == flight.written_tokens:
            return b""
        lead = b"" if self._text else self._begin()
        self._text.append(flight.unwritten())
        return lead + self._event(
            "response.output_text.delta", **self._place(), delta=self._text[-1], logprobs=[]
        )

    def _place(self) -> dict[str, Any]:
        return {"item_id": f"msg_{self._call.id}", "output_index": 0, "content_index": 0}

    def _begin(self) -> bytes:
        begun = _response(self._call, self._created, None, self._block_tokens)
        item = _item(self._call, "") | {"content": [], "status": "in_progress"}
        part = _item(self._call, "")["content"][0]
        return (
            self._event("response.created", response=begun)
            + self._event("response.in_progress", response=begun)
            + self._event("response.output_item.added", output_index=0, item=item)
            + self._event("response.content_part.added", **self._place(), part=part)
        )

    def end(self) -> bytes:
        """The whole text again, the item, and the whole response with its usage."""
        text = "".join(self._text)
        whole = _response(self._call, self._created, text, self._block_tokens)
        item: dict[str, Any] = _item(self._call, text)
        part = item["content"][0]
        return (
            self._event("response.output_text.done", **self._place(), text=text, logprobs=[])
            + self._event("response.content_part.done", **self._place(), part=part)
            + self._event("response.output_item.done", output_index=0, item=item)
            + self._event(f"response.{whole['status']}", response=whole)
        )


def response_died() -> bytes:
    """What a live stream gets when the engine stops under it."""
    return _event("error", code="server_error", message=ENGINE_DIED, param=None)


CHAT = Shape("chatcmpl-", read_chat, whole_answer, StreamWriter)
COMPLETION = Shape("cmpl-", read_completion, whole_answer, StreamWriter)
MESSAGES = Shape("msg_", read_messages, whole_message, MessagesWriter, messages_error, message_died)
RESPONSES = Shape(
    "resp_", read_responses, whole_response, ResponsesWriter, error_body, response_died
)
