"""OpenAI's Responses API, without its state: nothing is stored, nothing runs in the background."""

import msgspec

from routing.gateway.dialects.events import RESPONSES_LOOK
from routing.gateway.dialects.fields import bad, check_objects
from routing.gateway.dialects.openai import MAX_MESSAGES
from routing.gateway.dialects.operation import Fields, Operation, Prompts
from routing.gateway.dialects.strict import ASCII_ESCAPE
from routing.gateway.dialects.usage import responses_usage

_PROMPT_FIELDS = frozenset((
    "input", "instructions", "tools", "text", "tool_choice", "previous_input_messages",
    "chat_template_kwargs", "structured_outputs",
))  # fmt: skip


class _Part(msgspec.Struct):
    type: str = ""
    image_url: str | None = None


class _Item(msgspec.Struct):
    content: msgspec.Raw = msgspec.Raw(b"")
    output: msgspec.Raw = msgspec.Raw(b"")


class _Status(msgspec.Struct):
    status: str | None = None


_status = msgspec.json.Decoder(_Status).decode
_items = msgspec.json.Decoder(list[_Item]).decode
_parts = msgspec.json.Decoder(list[_Part]).decode


def _prompts(fields: Fields) -> Prompts:
    raw = fields.get("input", b"")
    if not raw.startswith((b'"', b"[")):
        bad("The field 'input' must be a string or an array.", "input")
    if raw.startswith(b"["):
        check_objects(fields, "input", MAX_MESSAGES)
    return Prompts()


def pictures_in(prompt: bytes) -> list[bytes]:
    """Pictures of the items' contents and tool outputs, as their URLs; by address: empty."""
    if not prompt.startswith(b"[") or (
        b"input_image" not in prompt and not ASCII_ESCAPE.search(prompt)
    ):
        return []
    try:
        urls = [
            (part.image_url or "").encode()
            for item in _items(prompt)
            for raw in (bytes(item.content), bytes(item.output))
            if raw.startswith(b"[")
            for part in _parts(raw)
            if part.type == "input_image"
        ]
    except msgspec.MsgspecError:
        return []  # not these shapes: all of it is text
    return [url if url.startswith(b"data:") else b"" for url in urls]


def _is_cut_off(body: bytes) -> bool:
    """An engine that stops under an answer calls it cancelled; nobody here asked for that."""
    try:
        return _status(body).status == "cancelled"
    except msgspec.MsgspecError:
        return False


RESPONSES = Operation(
    "responses", b"/v1/responses", "input", _PROMPT_FIELDS, _prompts,
    bounds=("max_output_tokens",), streams=True, pictures=pictures_in, usage=responses_usage,
    look=RESPONSES_LOOK, is_cut_off=_is_cut_off, templated="input",
)  # fmt: skip
