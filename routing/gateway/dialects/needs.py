"""What a body asks for beyond plain text, by the member that asks. Nothing is ever dropped."""

import msgspec

from routing.contracts.capabilities import Capability
from routing.gateway.dialects.operation import Fields, Operation

Needs = tuple[tuple[Capability, str], ...]

# What every call needs: that its operation is served.
_OWN: dict[str, Needs] = {one.value: ((one, "model"),) for one in Capability}
_OFF = (b"null", b"false", b"[]", b"{}", b'""', b'"none"', b'"text"')
_TOOLS = ("tools", "functions")
_FORMATS = (
    "response_format", "structured_outputs", "guided_json", "guided_grammar", "guided_regex",
    "guided_choice",
)  # fmt: skip
_STATE = ("previous_response_id", "conversation", "background", "store", "container")
_HOSTED = ("web_search_options", "mcp_servers")
# Members of engines of ours that no hosted provider knows.
_ENGINE = (
    "cache_salt", "priority", "request_id", "chat_template", "chat_template_kwargs",
    "structured_outputs", "guided_json", "guided_grammar", "guided_regex", "guided_choice",
    "vllm_xargs", "min_tokens", "ignore_eos", "repetition_penalty", "stop_token_ids", "min_p",
    "truncate_prompt_tokens", "mm_processor_kwargs", "add_generation_prompt",
    "continue_final_message", "documents", "best_of", "skip_special_tokens",
)  # fmt: skip
_WATCHED = frozenset((
    *_TOOLS, *_FORMATS, *_STATE, *_HOSTED, *_ENGINE, "modalities", "audio", "text",
    "output_config",
))  # fmt: skip
# Kinds of tools that the caller runs itself; a tool of Anthropic's shape without a kind is one.
_OWN_TOOLS = frozenset(("function", "custom", "namespace", ""))


class _Typed(msgspec.Struct):
    type: str | None = None


class _Formatted(msgspec.Struct):
    format: _Typed | None = None


_typed = msgspec.json.Decoder(_Typed).decode
_listed = msgspec.json.Decoder(list[_Typed]).decode
_formatted = msgspec.json.Decoder(_Formatted).decode


def needs_of(operation: Operation, fields: Fields, *, has_images: bool, prompt: bytes) -> Needs:
    """Capabilities that a body asks for, each with the member to name when nobody has it."""
    needs = _OWN[operation.name]
    if has_images:
        needs += ((Capability.IMAGE_INPUT, operation.field),)
    # A quote inside a text is escaped, so no text can look like this.
    if b'"input_audio"' in prompt:
        needs += ((Capability.AUDIO_INPUT, operation.field),)
    if not _WATCHED.isdisjoint(fields) or (operation.field == "input" and "prompt" in fields):
        needs += tuple(_asked(operation, fields))
    return needs


def _asked(operation: Operation, fields: Fields) -> list[tuple[Capability, str]]:
    stated = {name for name in fields if fields[name] not in _OFF}
    found = [(_tool_need(fields, name), name) for name in _TOOLS if name in stated]
    found += [(Capability.HOSTED_TOOLS, name) for name in _HOSTED if name in stated]
    found += [
        (Capability.STRUCTURED_OUTPUT, name)
        for name in _FORMATS
        if name in stated and not _is_text(fields[name])
    ]
    found += [
        (Capability.STRUCTURED_OUTPUT, name)
        for name in ("text", "output_config")
        if name in stated and _has_format(fields[name])
    ]
    found += [(Capability.STATE, name) for name in _STATE if name in stated]
    if operation.field == "input" and fields.get("prompt", b"").startswith(b"{"):
        found.append((Capability.STATE, "prompt"))  # a template that the provider keeps
    if "audio" in stated or ("modalities" in stated and b'"audio"' in fields["modalities"]):
        found.append((Capability.AUDIO_OUTPUT, "audio" if "audio" in stated else "modalities"))
    found += [
        (Capability.ENGINE_OPTIONS, name)
        for name in _ENGINE
        if name in stated and name != operation.field
    ]
    return found


def _tool_need(fields: Fields, name: str) -> Capability:
    try:
        kinds = {tool.type or "" for tool in _listed(fields[name])}
    except msgspec.MsgspecError:
        return Capability.TOOLS  # not a list of objects: the engine says so
    return Capability.TOOLS if kinds <= _OWN_TOOLS else Capability.HOSTED_TOOLS


def _is_text(raw: bytes) -> bool:
    try:
        return _typed(raw).type == "text"
    except msgspec.MsgspecError:
        return False


def _has_format(raw: bytes) -> bool:
    try:
        found = _formatted(raw).format
    except msgspec.MsgspecError:
        return False
    return found is not None and found.type not in (None, "text")
