"""A request's body: read the few fields that are needed, change them in place.

The body is never re-encoded. Its top-level members are located byte by byte once; the fields that
the gateway decides (model, output bound, usage, cache salt, priority) are spliced in, every other
byte is forwarded as it came. Which members those are is the operation's to say.
"""

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from routing.decision.estimate import MESSAGE_TOKENS, TOOLS_TOKENS, Ask
from routing.decision.pictures import UNKNOWN_TOKENS, picture_tokens
from routing.decision.types import Reason, Refusal
from routing.gateway.dialects.fields import (
    bad,
    decode_members,
    decode_text,
    read_bool,
    read_int,
    read_model,
    read_options,
    read_word,
)
from routing.gateway.dialects.needs import Needs, needs_of
from routing.gateway.dialects.operation import Fields, Operation, Prompts
from routing.gateway.dialects.pictures import size_of
from routing.gateway.dialects.strict import (
    ASCII_ESCAPE,
    UNICODE_ESCAPE,
    BadBodyError,
    check_json,
)

# Fallbacks and addresses are the operator's to choose, also those that an engine would fetch
# caches from.
REFUSED_FIELDS = frozenset((
    "fallbacks", "api_base", "base_url", "endpoint", "kv_transfer_params", "ec_transfer_params",
))  # fmt: skip
_KEY = re.compile(rb'[ \t\r\n]*"((?:[^"\\]|\\.)*)"[ \t\r\n]*:[ \t\r\n]*')
_NEXT = re.compile(rb"[ \t\r\n]*([,}])")
_START = re.compile(rb"[ \t\r\n]*\{")
_PICTURE = re.compile(rb'"(?:image_)?url"[ \t\r\n]*:[ \t\r\n]*"(data:[^"]*)?')
_LETTERS = bytes(range(65, 91)) + bytes(range(97, 123)) + b" "
DENSE_SHARE = 5  # text of which more than a fifth is no letter or space is dense
FRAME_SIGNS, FRAME_BYTES = 13, 28  # of {"role":"user","content":""}
_ROLE = b'"role"'
_any = msgspec.json.Decoder().decode
# Members that come before the prompt's own in what an engine reads.
_LEADS = ("system", "instructions")


class Call:
    """A request as far as the gateway reads it. `spans` are byte ranges of top-level values."""

    __slots__ = (
        "ask",
        "body",
        "choices",
        "end",
        "include_usage",
        "is_stream",
        "model",
        "needs",
        "operation",
        "prompt",
        "service_tier",
        "spans",
        "stream_options",
    )

    operation: Operation
    body: bytes
    spans: dict[str, tuple[int, int]]
    end: int
    model: str
    needs: Needs
    is_stream: bool
    include_usage: bool
    stream_options: dict[str, msgspec.Raw] | None
    ask: Ask
    choices: int
    service_tier: str
    prompt: bytes


def read_call(body: bytes, operation: Operation) -> Call | Refusal:
    """The call inside a body, or a refusal (400) that names the field at fault."""
    try:
        return _read(body, operation)
    except BadBodyError as error:
        return Refusal(Reason.INVALID_REQUEST, str(error), param=error.param)


def _read(body: bytes, operation: Operation) -> Call:
    try:
        fields = {name: bytes(raw) for name, raw in decode_members(body).items()}
    except (msgspec.MsgspecError, RecursionError) as error:
        raise BadBodyError(_why(error)) from None
    check_json(body)
    if not REFUSED_FIELDS.isdisjoint(fields):
        name = min(REFUSED_FIELDS.intersection(fields))
        bad(f"The field {name!r} is not accepted.", name)
    call = Call()
    call.operation = operation
    call.body = body
    call.model = read_model(fields)
    call.spans, call.end = _locate(body, fields)
    call.is_stream = operation.streams and read_bool(fields, "stream")
    call.stream_options = read_options(fields)
    call.include_usage = not operation.asks_usage or bool(
        call.stream_options and bytes(call.stream_options.get("include_usage", b"")) == b"true"
    )
    call.service_tier = read_word(fields, "service_tier")
    call.choices = 1
    if operation.generates and ("n" in fields or "best_of" in fields):
        call.choices = max(read_int(fields, "n", 1) or 1, read_int(fields, "best_of", 1) or 1)
    prompts = operation.prompts(fields)
    call.prompt = fields.get(operation.field, b"")
    call.ask = _ask(fields, call, prompts)
    call.needs = needs_of(operation, fields, has_images=call.ask.images > 0, prompt=call.prompt)
    for name in _LEADS:
        if name in fields and name in operation.prompt_fields:
            call.prompt = fields[name] + call.prompt
    return call


def _ask(fields: Fields, call: Call, prompts: Prompts) -> Ask:
    operation, repeats = call.operation, prompts.repeats or {}
    size = dense = 0
    is_escaped = False  # the prompt itself
    for name, text in fields.items():
        if name in operation.prompt_fields and not (prompts.ids and name == operation.field):
            read = len(text) * repeats.get(name, 1)
            size += read
            has_escape = UNICODE_ESCAPE.search(text) is not None
            if has_escape or _is_dense(text):
                dense += read
            if name == operation.field:
                is_escaped = has_escape
    images = picture_total = 0
    for url in () if prompts.ids else _pictures(operation, call.prompt, is_escaped=is_escaped):
        images += 1
        size -= len(url)
        dense -= len(url) if dense else 0
        seen = size_of(url) if url else None
        picture_total += picture_tokens(*seen) if seen else UNKNOWN_TOKENS
    bound = None
    for name in operation.bounds:
        stated = read_int(fields, name, 1)
        if stated is not None and (bound is None or stated < bound):
            bound = stated
    size, dense = max(size, 0), max(dense, 0)
    return Ask(
        size,
        images,
        prompts.ids,
        call.choices * prompts.number if operation.generates else 0,
        bound,
        prompts.number,
        picture_total,
        min(dense, size),
        operation.field,
        operation.frame_tokens * prompts.number + _message_tokens(fields, call.prompt),
        operation.fits_context,
        is_templated=operation.templated in fields,
    )


def _message_tokens(fields: Fields, prompt: bytes) -> int:
    """What the engine adds around messages and tools, whatever its template is."""
    has_tools = any(len(fields.get(name, b"")) > len(b"[]") for name in ("tools", "functions"))
    return MESSAGE_TOKENS * prompt.count(_ROLE) + (TOOLS_TOKENS if has_tools else 0)


def _pictures(operation: Operation, prompt: bytes, *, is_escaped: bool) -> list[bytes]:
    """Embedded pictures as `data:` URLs; one that is named by its address is empty."""
    if operation.pictures is not None:
        return operation.pictures(prompt)
    spelled = _plainly_spelled(prompt) if is_escaped else prompt
    if b"image_url" not in spelled:
        return []
    return [match[1] or b"" for match in _PICTURE.finditer(spelled)]


def _plainly_spelled(prompt: bytes) -> bytes:
    """JSON whose names hide behind escapes, spelled out: a picture must not pass as text."""
    return msgspec.json.encode(_any(prompt)) if ASCII_ESCAPE.search(prompt) else prompt


def _is_dense(text: bytes) -> bool:
    """Does a token hold few bytes here: digits, signs, other alphabets?

    The frame's own signs, of messages or a string, are told apart from the text's.
    """
    signs = len(text.translate(None, _LETTERS)) - 2
    if signs * DENSE_SHARE <= len(text):
        return False  # without its frames it is plainer still
    frames = text.count(_ROLE)
    return (signs - FRAME_SIGNS * frames) * DENSE_SHARE > len(text) - FRAME_BYTES * frames


def _locate(body: bytes, fields: Fields) -> tuple[dict[str, tuple[int, int]], int]:
    """Byte range of each top-level value, and where the closing brace is.

    The values' lengths are known from the decode, so nothing inside them is looked at. A name that
    occurs twice makes the lengths disagree: it is refused, whichever of the two would have won.
    """
    spans: dict[str, tuple[int, int]] = {}
    start = _START.match(body)
    at = start.end() if start else 0
    for name, value in fields.items():
        compact = b'"%b":' % name.encode()
        begin = at + len(compact)
        if not (body.startswith(compact, at) and body.startswith(value, begin)):
            begin = _value_start(body, at, name)
            if not body.startswith(value, begin):
                bad(f"The field {name!r} occurs twice.", name)
        at = begin + len(value)
        spans[name] = (begin, at)
        if body[at : at + 1] == b",":
            at += 1
            continue
        follows = _NEXT.match(body, at)
        if follows is None:
            bad(f"The field {name!r} occurs twice.", name)
        at = follows.end()
        if follows[1] == b"}":
            break
    if len(spans) != len(fields) or body[at - 1 : at] != b"}":
        bad("A field occurs twice.", "")
    return spans, at - 1


def _value_start(body: bytes, at: int, name: str) -> int:
    """Where the value of the member at `at` begins; refused unless the member is `name`."""
    key = _KEY.match(body, at)
    if key is None or (key[1] != name.encode() and decode_text(b'"%b"' % key[1]) != name):
        bad("A field occurs twice.", name)
    return key.end()


def _why(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "The JSON is nested too deeply."
    if isinstance(error, msgspec.ValidationError):
        return "The body must be a JSON object."
    return "The body is not valid JSON."


class Decided(NamedTuple):
    """What the gateway puts into the forwarded body."""

    model: str
    output_tokens: int
    cache_salt: str
    priority: int = 0  # lower is sooner; 0 is the engine's own default and is not sent
    request_id: str = ""  # replaces one that the caller states in the body
    is_hosted: bool = False  # by a provider, who knows none of the engines' own members


def forwarded_body(
    call: Call,
    decided: Decided,
    also: Sequence[tuple[int, int, bytes]] = (),
    added: bytes = b"",
) -> bytes:
    """The caller's body with the gateway's decisions in place; all other bytes untouched.

    `also` are further (begin, end, bytes) to put in place, `added` further members.
    """
    edits = list(also)
    if decided.model != call.model:
        edits.append((*call.spans["model"], msgspec.json.encode(decided.model)))
    operation = call.operation
    if operation.generates and not _lower_bounds(call, decided.output_tokens, edits):
        name = (decided.is_hosted and operation.hosted_bound) or operation.bounds[0]
        added += _put(call, name, b"%d" % decided.output_tokens, edits)
    if call.is_stream and not call.include_usage:
        options: dict[str, Any] = dict(call.stream_options or {}) | {"include_usage": True}
        added += _put(call, "stream_options", msgspec.json.encode(options), edits)
    if decided.is_hosted:
        return _spliced(call, edits, added)
    if operation.takes_salt or "cache_salt" in call.spans:
        added += _put(call, "cache_salt", msgspec.json.encode(decided.cache_salt), edits)
    if "priority" in call.spans or (decided.priority and operation.takes_priority):
        added += _put(call, "priority", b"%d" % decided.priority, edits)
    if "request_id" in call.spans:
        _put(call, "request_id", msgspec.json.encode(decided.request_id), edits)
    return _spliced(call, edits, added)


def _put(call: Call, name: str, value: bytes, edits: list[tuple[int, int, bytes]]) -> bytes:
    """Replace a member's value, or the bytes that add it."""
    if (span := call.spans.get(name)) is None:
        return b',"%b":%b' % (name.encode(), value)
    edits.append((*span, value))
    return b""


def _lower_bounds(call: Call, most: int, edits: list[tuple[int, int, bytes]]) -> bool:
    """Cut the caller's own output bounds to `most`; whether it stated any."""
    is_stated = False
    for name in call.operation.bounds:
        span = call.spans.get(name)
        if span is None or (value := call.body[span[0] : span[1]]) == b"null":
            continue
        is_stated = True
        if int(value) > most:
            edits.append((*span, b"%d" % most))
    return is_stated


def _spliced(call: Call, edits: list[tuple[int, int, bytes]], added: bytes) -> bytes:
    body, at = call.body, 0
    pieces: list[bytes] = []
    edits.sort()
    for begin, end, replacement in edits:
        pieces.append(body[at:begin])
        pieces.append(replacement)
        at = end
    pieces.append(body[at : call.end])
    pieces.append(added)
    pieces.append(body[call.end :])
    return b"".join(pieces)
