"""Usage objects of every shape, read with suspicion."""

from collections.abc import Callable
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


class _InputDetails(msgspec.Struct):
    cached_tokens: int | None = None
    cache_write_tokens: int | None = None


class _OutputDetails(msgspec.Struct):
    reasoning_tokens: int | None = None


class Counts(msgspec.Struct):
    """The members of all usage objects; each shape reads its own."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _InputDetails | None = None
    completion_tokens_details: _OutputDetails | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    input_tokens_details: _InputDetails | None = None
    output_tokens_details: _OutputDetails | None = None
    cache_read_input_tokens: int | None = None
    cache_creation_input_tokens: int | None = None


class _Inner(msgspec.Struct):
    usage: Counts | None = None


class _Answer(msgspec.Struct):
    usage: Counts | None = None
    error: msgspec.Raw = msgspec.Raw(b"null")
    message: msgspec.Raw = msgspec.Raw(b"")  # of an event that opens a message
    response: msgspec.Raw = msgspec.Raw(b"")  # of an event about a whole response
    count: int | None = None  # of a tokenization
    input_tokens: int | None = None  # of a count of tokens


Reader = Callable[[Counts], Usage | None]
_NO_ERROR = (b"null", b"{}", b'""', b"")
_answer = msgspec.json.Decoder(_Answer).decode
_inner = msgspec.json.Decoder(_Inner).decode


def chat_usage(counts: Counts) -> Usage | None:
    """Of completions, embeddings and scores: cached input is a part of the input."""
    return _stated(
        counts.prompt_tokens,
        counts.prompt_tokens_details,
        counts.completion_tokens,
        counts.completion_tokens_details,
    )


def responses_usage(counts: Counts) -> Usage | None:
    """Of the Responses API: the same figures under newer names."""
    return _stated(
        counts.input_tokens,
        counts.input_tokens_details,
        counts.output_tokens,
        counts.output_tokens_details,
    )


def _stated(
    given: int | None,
    of_it: _InputDetails | None,
    output: int | None,
    of_output: _OutputDetails | None,
) -> Usage | None:
    if given is None and output is None:
        return None
    return _checked(
        given or 0,
        (of_it.cached_tokens or 0) if of_it else 0,
        output or 0,
        (of_output.reasoning_tokens or 0) if of_output else 0,
        (of_it.cache_write_tokens or 0) if of_it else 0,
    )


def messages_usage(counts: Counts) -> Usage | None:
    """Of the Messages API: `input_tokens` are those beside the cache, read or written."""
    if counts.input_tokens is None and counts.output_tokens is None:
        return None
    read = counts.cache_read_input_tokens or 0
    written = counts.cache_creation_input_tokens or 0
    prompt = (counts.input_tokens or 0) + max(read, 0) + max(written, 0)
    return _checked(prompt, read, counts.output_tokens or 0, 0, written)


def read_usage(payload: bytes, reader: Reader = chat_usage, opening: bytes = b"") -> Usage | None:
    """Usage of an answer or of a stream's last event; None when missing or not to be believed.

    `opening` is the stream's first event with usage: what the last one leaves out is taken of it.
    """
    try:
        counts = _counts_in(_answer(payload))
        if opening and opening is not payload:
            counts = _filled(counts, _counts_in(_answer(opening)))
        return reader(counts) if counts is not None else None
    except msgspec.MsgspecError:
        return None


def read_answer(body: bytes, reader: Reader = chat_usage) -> tuple[bool, Usage | None]:
    """(whether a whole body is an answer: a JSON object without a top-level error, its usage)."""
    try:
        found = _answer(body)
        counts = _counts_in(found)
    except msgspec.MsgspecError:
        return _is_object(body), None
    return bytes(found.error) in _NO_ERROR, reader(counts) if counts is not None else None


def is_answer(body: bytes) -> bool:
    """Whether a whole body is a JSON object without a top-level error."""
    return read_answer(body)[0]


def _counts_in(found: _Answer) -> Counts | None:
    if found.usage is not None:
        return found.usage
    for raw in (bytes(found.message), bytes(found.response)):
        if raw.startswith(b"{"):
            return _inner(raw).usage
    tokens = found.count if found.count is not None else found.input_tokens
    if tokens is None:
        return None
    # Counting runs on no accelerator: it is charged like input that was read from the cache.
    return Counts(prompt_tokens=tokens, prompt_tokens_details=_InputDetails(cached_tokens=tokens))


def _filled(last: Counts | None, first: Counts | None) -> Counts | None:
    if last is None or first is None:
        return last or first
    for name in Counts.__struct_fields__:
        if getattr(last, name) is None:
            setattr(last, name, getattr(first, name))
    return last


def _checked(prompt: int, cached: int, output: int, reasoning: int, written: int) -> Usage | None:
    if not (0 <= prompt <= MOST_TOKENS and 0 <= output <= MOST_TOKENS):
        return None
    if not (cached or reasoning or written):
        return Usage(prompt, 0, output, 0, False)
    is_suspicious = not 0 <= cached <= prompt or not 0 <= reasoning <= output
    cached = min(max(cached, 0), prompt)
    is_suspicious = is_suspicious or not 0 <= written <= prompt - cached
    reasoning, written = min(max(reasoning, 0), output), min(max(written, 0), prompt - cached)
    return Usage(prompt, cached, output, reasoning, is_suspicious, written)


def _is_object(body: bytes) -> bool:
    """Second look: odd usage or half surrogate pairs make an object no less an answer."""
    text = body.strip()
    return text.startswith(b"{") and text.endswith(b"}")
