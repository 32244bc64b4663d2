"""Anthropic's Messages API: messages and the count of their tokens."""

import msgspec

from routing.gateway.dialects.events import MESSAGES_LOOK
from routing.gateway.dialects.fields import bad, check_objects
from routing.gateway.dialects.openai import MAX_MESSAGES
from routing.gateway.dialects.operation import Fields, Operation, Prompts, Style
from routing.gateway.dialects.strict import ASCII_ESCAPE
from routing.gateway.dialects.usage import messages_usage

_PROMPT_FIELDS = frozenset((
    "system", "messages", "tools", "output_config", "tool_choice", "chat_template_kwargs",
))  # fmt: skip


class _Source(msgspec.Struct):
    type: str = ""
    media_type: str = ""
    data: str = ""


class _Block(msgspec.Struct):
    type: str = ""
    source: _Source | None = None
    content: msgspec.Raw = msgspec.Raw(b"")


class _Stop(msgspec.Struct):
    stop_reason: str | None = None


class _Message(msgspec.Struct):
    content: msgspec.Raw = msgspec.Raw(b"")


_messages = msgspec.json.Decoder(list[_Message]).decode
_blocks = msgspec.json.Decoder(list[_Block]).decode
_stop = msgspec.json.Decoder(_Stop).decode


def _prompts(fields: Fields) -> Prompts:
    check_objects(fields, "messages", MAX_MESSAGES)
    return Prompts()


def _bounded(fields: Fields) -> Prompts:
    if fields.get("max_tokens", b"null") == b"null":
        bad("The field 'max_tokens' is required.", "max_tokens")
    return _prompts(fields)


def pictures_in(prompt: bytes) -> list[bytes]:
    """Pictures of messages, and of tool results in them, as `data:` URLs.

    Found where an engine looks for them, not by their spelling: what else a tool call holds under
    such names is text.
    """
    if b'"image"' not in prompt and not ASCII_ESCAPE.search(prompt):
        return []
    try:
        return [
            url
            for message in _messages(prompt)
            for block in _listed(message.content)
            for url in _of_block(block)
        ]
    except msgspec.MsgspecError:
        return []  # not these shapes: all of it is text


def _listed(content: msgspec.Raw) -> list[_Block]:
    raw = bytes(content)
    return _blocks(raw) if raw.startswith(b"[") else []


def _of_block(block: _Block) -> list[bytes]:
    if block.type == "tool_result":
        return [url for inner in _listed(block.content) for url in _of_image(inner)]
    return _of_image(block)


def _of_image(block: _Block) -> list[bytes]:
    if block.type != "image" or block.source is None:
        return []
    if not block.source.data:
        return [b""]
    return [f"data:{block.source.media_type};base64,{block.source.data}".encode()]


def _is_cut_off(body: bytes) -> bool:
    """An engine that stops under an answer gives no reason for its end."""
    try:
        return _stop(body).stop_reason is None
    except msgspec.MsgspecError:
        return False


MESSAGES = Operation(
    "messages", b"/v1/messages", "messages", _PROMPT_FIELDS, _bounded,
    bounds=("max_tokens",), streams=True, takes_priority=False, style=Style.ANTHROPIC,
    pictures=pictures_in, usage=messages_usage, look=MESSAGES_LOOK, is_cut_off=_is_cut_off,
    templated="messages",
)  # fmt: skip
COUNT_TOKENS = Operation(
    "count_tokens", b"/v1/messages/count_tokens", "messages", _PROMPT_FIELDS, _prompts,
    takes_salt=False, takes_priority=False, style=Style.ANTHROPIC, pictures=pictures_in,
    fits_context=False, templated="messages",
)  # fmt: skip
