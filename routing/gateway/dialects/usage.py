"""Usage objects of the OpenAI shape, read with suspicion."""

from typing import NamedTuple

import msgspec

MOST_TOKENS = 1_000_000_000  # above it a count is a fault of the engine, not a bill


class Usage(NamedTuple):
    """Token counts as they are charged: cached is cut to the input; `is_suspicious` says so."""

    input_tokens: int
    cached_tokens: int
    output_tokens: int
    reasoning_tokens: int
    is_suspicious: bool
    cache_write_tokens: int = 0


class _PromptDetails(msgspec.Struct):
    cached_tokens: int | None = None
    cache_write_tokens: int | None = None


class _OutputDetails(msgspec.Struct):
    reasoning_tokens: int | None = None


class _Counts(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _PromptDetails | None = None
    completion_tokens_details: _OutputDetails | None = None


class _Answer(msgspec.Struct):
    usage: _Counts | None = None
    error: msgspec.Raw = msgspec.Raw(b"null")


_NO_ERROR = (b"null", b"{}", b'""', b"")
_answer = msgspec.json.Decoder(_Answer).decode
_skim = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


def read_usage(payload: bytes) -> Usage | None:
    """Usage of an answer or of a stream's last event; None when missing or not to be believed."""
    try:
        return _usage_of(_answer(payload).usage)
    except msgspec.MsgspecError:
        return None


def read_answer(body: bytes) -> tuple[bool, Usage | None]:
    """`(is_answer(body), read_usage(body))` in one reading."""
    try:
        found = _answer(body)
    except msgspec.MsgspecError:
        return _is_object(body), None
    return bytes(found.error) in _NO_ERROR, _usage_of(found.usage)


def _usage_of(counts: _Counts | None) -> Usage | None:
    if counts is None or (counts.prompt_tokens is None and counts.completion_tokens is None):
        return None
    prompt, output = counts.prompt_tokens or 0, counts.completion_tokens or 0
    details, more = counts.prompt_tokens_details, counts.completion_tokens_details
    cached = (details.cached_tokens or 0) if details else 0
    written = (details.cache_write_tokens or 0) if details else 0
    reasoning = (more.reasoning_tokens or 0) if more else 0
    if not (0 <= prompt <= MOST_TOKENS and 0 <= output <= MOST_TOKENS):
        return None
    is_suspicious = not 0 <= cached <= prompt or not 0 <= reasoning <= output
    cached = min(max(cached, 0), prompt)
    is_suspicious = is_suspicious or not 0 <= written <= prompt - cached
    reasoning, written = min(max(reasoning, 0), output), min(max(written, 0), prompt - cached)
    return Usage(prompt, cached, output, reasoning, is_suspicious, written)


def is_answer(body: bytes) -> bool:
    """Whether a whole body is a JSON object without a top-level error."""
    return read_answer(body)[0]


def _is_object(body: bytes) -> bool:
    """Second look: odd usage or half surrogate pairs make an object no less an answer."""
    text = body.strip()
    return text.startswith(b"{") and text.endswith(b"}")
