"""The text that a stream's events add, for who has to look at it: by choice, in order."""

import json
from collections.abc import Iterator
from typing import Any

from routing.gateway.dialects.events import DONE
from routing.gateway.sse import payloads_of

# Members that name or order things: what is left of a delta is text of the model's.
_NO_TEXT = frozenset(("role", "id", "type", "signature", "finish_reason", "object", "model"))


def heard(data: bytes) -> dict[int, str]:
    """Text by choice (or content block, or output) of whole events of any of our dialects.

    Arguments of tools and reasoning are text too. An event that cannot be read is text as it
    stands: nothing passes unseen because it is spelt badly.
    """
    found: dict[int, list[str]] = {}
    for _, payload in payloads_of(data):
        if not payload or payload == DONE:
            continue
        for index, text in _texts(payload):
            found.setdefault(index, []).append(text)
    return {index: "".join(texts) for index, texts in found.items()}


def _texts(payload: bytes) -> Iterator[tuple[int, str]]:
    try:
        event = json.loads(payload)
    except (ValueError, RecursionError):
        event = None
    if not isinstance(event, dict):
        yield 0, payload.decode(errors="replace")
        return
    if isinstance(choices := event.get("choices"), list):
        for choice in choices:
            if isinstance(choice, dict):
                index = _index(choice.get("index"))
                for text in (*_strings(choice.get("delta")), *_strings(choice.get("text"))):
                    yield index, text
    elif isinstance(event.get("type"), str):
        yield from _named_texts(event["type"], event)


def _named_texts(kind: str, event: dict[str, Any]) -> Iterator[tuple[int, str]]:
    """Of the Messages and Responses APIs, whose events say what they are."""
    index, part = event.get("index"), None
    if kind == "content_block_start":
        part = event.get("content_block")
    elif kind == "content_block_delta":
        part = event.get("delta")
    elif kind.endswith(".delta"):
        index, part = event.get("output_index"), event.get("delta")
    for text in _strings(part):
        yield _index(index), text


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        if value:
            yield value
    elif isinstance(value, dict):
        for name, item in value.items():
            if name not in _NO_TEXT:
                yield from _strings(item)
    elif isinstance(value, list):
        for item in value:
            yield from _strings(item)


def _index(value: object) -> int:
    return value if isinstance(value, int) else 0
