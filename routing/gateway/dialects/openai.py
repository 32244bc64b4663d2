"""The OpenAI shape: read the few fields that are needed, change them in place, word the errors.

The body is never re-encoded. Its top-level members are located byte by byte once; the fields that
the gateway decides (model, output bound, usage, cache salt, priority) are spliced in, every other
byte is forwarded as it came.
"""

import re
from typing import Any, NamedTuple, NoReturn

import msgspec

from routing.decision.estimate import Ask
from routing.decision.pictures import UNKNOWN_TOKENS, picture_tokens
from routing.decision.types import Reason, Refusal
from routing.gateway.dialects.pictures import size_of
from routing.gateway.dialects.strict import BadBodyError, check_json

MAX_MESSAGES = 10_000  # a long agent session has hundreds
MAX_PROMPTS = 128
MAX_CHOICES_STATED = 1_000  # sanity bound on `n`; the policy's own bound comes later
MAX_MODEL_BYTES = 256
REFUSED_FIELDS = frozenset(("fallbacks", "api_base", "base_url", "endpoint"))
# Members whose bytes the engine turns into prompt tokens.
_PROMPT_FIELDS = frozenset((
    "messages", "prompt", "suffix", "tools", "functions", "documents", "response_format",
    "chat_template", "chat_template_kwargs", "guided_json", "guided_grammar",
))  # fmt: skip
_BOUNDS = ("max_tokens", "max_completion_tokens")
_KEY = re.compile(rb'[ \t\r\n]*"((?:[^"\\]|\\.)*)"[ \t\r\n]*:[ \t\r\n]*')
_NEXT = re.compile(rb"[ \t\r\n]*([,}])")
_START = re.compile(rb"[ \t\r\n]*\{")
_PICTURE = re.compile(rb'"(?:image_)?url"[ \t\r\n]*:[ \t\r\n]*"(data:[^"]*)?')
_LETTERS = bytes(range(65, 91)) + bytes(range(97, 123)) + b" "
DENSE_SHARE = 5  # text of which more than a fifth is no letter or space is dense
FRAME_SIGNS, FRAME_BYTES = 13, 28  # of {"role":"user","content":""}
_SPACE = 0x20  # JSON white space is this or below
_INT_DIGITS = 15
_INT = re.compile(rb"-?[0-9]{1,%d}\Z" % _INT_DIGITS)

_members = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_items = msgspec.json.Decoder(list[msgspec.Raw]).decode
_text = msgspec.json.Decoder(str).decode
_any = msgspec.json.Decoder().decode


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
        "prompt",
        "service_tier",
        "spans",
        "stream_options",
    )

    body: bytes
    spans: dict[str, tuple[int, int]]
    end: int
    model: str
    is_stream: bool
    include_usage: bool
    stream_options: dict[str, msgspec.Raw] | None
    ask: Ask
    choices: int
    service_tier: str
    prompt: bytes


def read_call(body: bytes, *, is_chat: bool) -> Call | Refusal:
    """The call inside a body, or a refusal (400) that names the field at fault."""
    try:
        return _read(body, is_chat=is_chat)
    except BadBodyError as error:
        return Refusal(Reason.INVALID_REQUEST, str(error), param=error.param)


def _read(body: bytes, *, is_chat: bool) -> Call:
    try:
        fields = _members(body)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise BadBodyError(_why(error)) from None
    check_json(body)
    if not REFUSED_FIELDS.isdisjoint(fields):
        name = min(REFUSED_FIELDS.intersection(fields))
        _bad(f"The field {name!r} is not accepted.", name)
    call = Call()
    call.body = body
    call.model = _read_model(fields)
    call.spans, call.end = _locate(body, fields)
    call.is_stream = _read_bool(fields, "stream")
    call.stream_options = _read_options(fields)
    call.include_usage = bool(
        call.stream_options and bytes(call.stream_options.get("include_usage", b"")) == b"true"
    )
    call.service_tier = _read_word(fields, "service_tier")
    call.choices = 1
    if "n" in fields or "best_of" in fields:
        call.choices = max(_read_int(fields, "n", 1) or 1, _read_int(fields, "best_of", 1) or 1)
    field = "messages" if is_chat else "prompt"
    prompts, ids = (_read_messages(fields), 0) if is_chat else _read_prompt(fields)
    call.prompt = bytes(fields[field])
    call.ask = _ask(fields, call, field, prompts, ids)
    return call


def _ask(fields: dict[str, msgspec.Raw], call: Call, field: str, prompts: int, ids: int) -> Ask:
    size = dense = 0
    for name, raw in fields.items():
        if name in _PROMPT_FIELDS and not (ids and name == field):
            text = bytes(raw)
            size += len(text)
            dense += len(text) if _is_dense(text) else 0
    images = picture_total = 0
    if not ids and (prompt := _plainly_spelled(call.prompt)) and b"image_url" in prompt:
        for match in _PICTURE.finditer(prompt):
            url = match[1] or b""
            images += 1
            size -= len(url)
            dense -= len(url) if dense else 0
            seen = size_of(url) if url else None
            picture_total += picture_tokens(*seen) if seen else UNKNOWN_TOKENS
    bound = _read_int(fields, "max_tokens", 1)
    if "max_completion_tokens" in fields:
        newer = _read_int(fields, "max_completion_tokens", 1)
        if bound is None or (newer is not None and newer < bound):
            bound = newer
    choices = call.choices * prompts
    size, dense = max(size, 0), max(dense, 0)
    return Ask(size, images, ids, choices, bound, prompts, picture_total, min(dense, size), field)


def _plainly_spelled(prompt: bytes) -> bytes:
    """JSON whose names hide behind escapes, spelled out: a picture must not pass as text."""
    return msgspec.json.encode(_any(prompt)) if b"\\u00" in prompt else prompt


def _is_dense(text: bytes) -> bool:
    """Does a token hold few bytes here: digits, signs, other alphabets, escapes?

    The frame's own signs, of messages or a string, are told apart from the text's.
    """
    if b"\\u" in text:
        return True
    frames = text.count(b'"role"')
    signs = len(text.translate(None, _LETTERS)) - 2 - FRAME_SIGNS * frames
    return signs * DENSE_SHARE > len(text) - FRAME_BYTES * frames


def _locate(body: bytes, fields: dict[str, msgspec.Raw]) -> tuple[dict[str, tuple[int, int]], int]:
    """Byte range of each top-level value, and where the closing brace is.

    The values' lengths are known from the decode, so nothing inside them is looked at. A name that
    occurs twice makes the lengths disagree: it is refused, whichever of the two would have won.
    """
    spans: dict[str, tuple[int, int]] = {}
    start = _START.match(body)
    at = start.end() if start else 0
    for name, raw in fields.items():
        begin = _value_start(body, at, name)
        value = bytes(raw)
        at = begin + len(value)
        if not body.startswith(value, begin):
            _bad(f"The field {name!r} occurs twice.", name)
        spans[name] = (begin, at)
        if body[at : at + 1] == b",":
            at += 1
            continue
        follows = _NEXT.match(body, at)
        if follows is None:
            _bad(f"The field {name!r} occurs twice.", name)
        at = follows.end()
        if follows[1] == b"}":
            break
    if len(spans) != len(fields) or body[at - 1 : at] != b"}":
        _bad("A field occurs twice.", "")
    return spans, at - 1


def _value_start(body: bytes, at: int, name: str) -> int:
    """Where the value of the member at `at` begins; refused unless the member is `name`."""
    compact = b'"%b":' % name.encode()
    if body.startswith(compact, at) and body[at + len(compact)] > _SPACE:
        return at + len(compact)
    key = _KEY.match(body, at)
    if key is None or (key[1] != name.encode() and _text(b'"%b"' % key[1]) != name):
        _bad("A field occurs twice.", name)
    return key.end()


def _bad(message: str, param: str) -> NoReturn:
    raise BadBodyError(message, param)


def _why(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "The JSON is nested too deeply."
    if isinstance(error, msgspec.ValidationError):
        return "The body must be a JSON object."
    return "The body is not valid JSON."


def _read_model(fields: dict[str, msgspec.Raw]) -> str:
    raw = bytes(fields.get("model", b""))
    if not raw.startswith(b'"') or len(raw) <= 2:
        _bad("The field 'model' must be a non-empty string.", "model")
    if len(raw) > MAX_MODEL_BYTES:
        _bad("The field 'model' is too long.", "model")
    return _text(raw)


def _read_bool(fields: dict[str, msgspec.Raw], name: str) -> bool:
    if name not in fields:
        return False
    raw = bytes(fields[name])
    if raw not in (b"true", b"false", b"null"):
        _bad(f"The field {name!r} must be true or false.", name)
    return raw == b"true"


def _read_word(fields: dict[str, msgspec.Raw], name: str) -> str:
    if name not in fields or (raw := bytes(fields[name])) == b"null":
        return ""
    if not raw.startswith(b'"'):
        _bad(f"The field {name!r} must be a string.", name)
    return _text(raw)


def _read_int(fields: dict[str, msgspec.Raw], name: str, least: int) -> int | None:
    if name not in fields or (raw := bytes(fields[name])) == b"null":
        return None
    if _INT.match(raw) is None or (value := int(raw)) < least:
        if raw.isdigit() and len(raw) > _INT_DIGITS:
            _bad(f"The field {name!r} is too large.", name)
        _bad(f"The field {name!r} must be a whole number of at least {least}.", name)
    if name in ("n", "best_of") and value > MAX_CHOICES_STATED:
        _bad(f"The field {name!r} is too large.", name)
    return value


def _read_options(fields: dict[str, msgspec.Raw]) -> dict[str, msgspec.Raw] | None:
    if "stream_options" not in fields or (raw := bytes(fields["stream_options"])) == b"null":
        return None
    if not raw.startswith(b"{"):
        _bad("The field 'stream_options' must be an object.", "stream_options")
    return _members(raw)


def _read_items(fields: dict[str, msgspec.Raw], name: str, most: int) -> list[msgspec.Raw]:
    raw = bytes(fields.get(name, b""))
    if not raw.startswith(b"["):
        _bad(f"The field {name!r} must be an array.", name)
    items = _items(raw)
    if not items or len(items) > most:
        _bad(f"The field {name!r} must hold 1 to {most} items.", name)
    return items


def _read_messages(fields: dict[str, msgspec.Raw]) -> int:
    """Checks `messages`; how many prompts they are (one)."""
    for item in _read_items(fields, "messages", MAX_MESSAGES):
        if not bytes(item).startswith(b"{"):
            _bad("Each of the 'messages' must be an object.", "messages")
    return 1


def _read_prompt(fields: dict[str, msgspec.Raw]) -> tuple[int, int]:
    """(number of prompts, tokens given as ids) of a completion's `prompt`."""
    raw = bytes(fields.get("prompt", b""))
    if raw.startswith(b'"'):
        return 1, 0
    if not raw.startswith(b"["):
        _bad("The field 'prompt' must be a string or an array.", "prompt")
    items = _items(raw)
    if items and bytes(items[0])[:1].isdigit():
        return 1, len(items)
    if not items or len(items) > MAX_PROMPTS:
        _bad(f"The field 'prompt' must hold 1 to {MAX_PROMPTS} prompts.", "prompt")
    if bytes(items[0]).startswith(b"["):
        return len(items), sum(bytes(item).count(b",") + 1 for item in items)
    return len(items), 0


class Decided(NamedTuple):
    """What the gateway puts into the forwarded body."""

    model: str
    output_tokens: int
    cache_salt: str
    priority: int = 0  # lower is sooner; 0 is the engine's own default and is not sent


def forwarded_body(call: Call, decided: Decided) -> bytes:
    """The caller's body with the gateway's decisions in place; all other bytes untouched."""
    spans = call.spans
    edits: list[tuple[int, int, bytes]] = []
    added = b""
    if decided.model != call.model:
        edits.append((*spans["model"], msgspec.json.encode(decided.model)))
    bound = b"%d" % decided.output_tokens
    if not _lower_bounds(call, decided.output_tokens, edits):
        if "max_tokens" in spans:  # null
            edits.append((*spans["max_tokens"], bound))
        else:
            added += b',"max_tokens":' + bound
    if call.is_stream and not call.include_usage:
        if "stream_options" in spans:
            options: dict[str, Any] = dict(call.stream_options or {})
            options["include_usage"] = True
            edits.append((*spans["stream_options"], msgspec.json.encode(options)))
        else:
            added += b',"stream_options":{"include_usage":true}'
    salt = msgspec.json.encode(decided.cache_salt)
    if "cache_salt" in spans:
        edits.append((*spans["cache_salt"], salt))
    else:
        added += b',"cache_salt":' + salt
    if "priority" in spans:
        edits.append((*spans["priority"], b"%d" % decided.priority))
    elif decided.priority:
        added += b',"priority":%d' % decided.priority
    return _spliced(call, edits, added)


def _lower_bounds(call: Call, most: int, edits: list[tuple[int, int, bytes]]) -> bool:
    """Cut the caller's own output bounds to `most`; whether it stated any."""
    is_stated = False
    for name in _BOUNDS:
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
