"""Embeddings, rerank and score: prompts are read, nothing is generated, as vLLM answers them.

Vectors and scores are drawn from the text, so the same text always has the same.
"""

import base64
import hashlib
import struct
from dataclasses import dataclass
from typing import Any

import msgspec

from capacity.engine.answers import encode
from capacity.engine.asks import (
    Ask,
    AskError,
    CompletionBody,
    Limits,
    ask_for,
    check_common,
    prompts_of,
)
from capacity.engine.text import pieces_of

DIMENSIONS = 32  # of a vector: small, since nobody searches with it
_INT32 = 1 << 31
_SEPARATOR = "\n"  # between the two texts of a pair


class EmbeddingBody(msgspec.Struct):
    """POST /v1/embeddings."""

    input: str | list[str | int | list[int]]
    model: str | None = None
    encoding_format: str = "float"
    dimensions: int | None = None
    cache_salt: str | None = None
    priority: int = 0


class RerankBody(msgspec.Struct):
    """POST /v1/rerank."""

    query: str
    documents: list[str]
    model: str | None = None
    top_n: int = 0
    cache_salt: str | None = None
    priority: int = 0


class ScoreBody(msgspec.Struct):
    """POST /v1/score."""

    text_1: str | list[str]
    text_2: str | list[str]
    model: str | None = None
    cache_salt: str | None = None
    priority: int = 0


@dataclass(frozen=True, slots=True)
class Pooled:
    """A checked call: what the scheduler sees, and the body to answer with."""

    ask: Ask
    answer: dict[str, Any]


_embedding = msgspec.json.Decoder(EmbeddingBody).decode
_rerank = msgspec.json.Decoder(RerankBody).decode
_score = msgspec.json.Decoder(ScoreBody).decode


def _prefill(
    body: EmbeddingBody | RerankBody | ScoreBody, prompts: list[list[bytes]], limits: Limits
) -> Ask:
    """Each prompt takes the place of an answer of one token: that is when its prefill ends."""
    fields = {"model": body.model, "cache_salt": body.cache_salt, "priority": body.priority}
    asked = CompletionBody(prompt="", max_tokens=1, ignore_eos=True, **fields)  # type: ignore[arg-type]
    check_common(asked, limits)
    return ask_for(asked, prompts, 1, limits, is_chat=False)


def _draw(text: bytes, number: int) -> float:
    """Between -1 and 1, by the text."""
    raw = hashlib.blake2b(text, key=str(number).encode(), digest_size=4).digest()
    return int.from_bytes(raw, "big", signed=True) / _INT32


def read_embeddings(raw: bytes, limits: Limits) -> Pooled:
    """An embeddings call. Raises `AskError`."""
    try:
        body = _embedding(raw)
    except msgspec.MsgspecError as error:
        raise AskError(400, str(error)) from error
    prompts = prompts_of(body.input)
    ask = _prefill(body, prompts, limits)
    size = body.dimensions or DIMENSIONS
    data = []
    for index, pieces in enumerate(prompts):
        text = b"".join(pieces)
        vector: Any = [_draw(text, number) for number in range(size)]
        if body.encoding_format == "base64":
            vector = base64.b64encode(struct.pack(f"<{size}f", *vector)).decode()
        data.append({"index": index, "object": "embedding", "embedding": vector})
    return Pooled(ask, {"object": "list", "model": ask.model, "data": data, "usage": _usage(ask)})


def read_rerank(raw: bytes, limits: Limits) -> Pooled:
    """A rerank call. Raises `AskError`."""
    try:
        body = _rerank(raw)
    except msgspec.MsgspecError as error:
        raise AskError(400, str(error)) from error
    ask, scores = _pairs(body, [(body.query, one) for one in body.documents], limits)
    results = [
        {"index": index, "document": {"text": text}, "relevance_score": score}
        for index, (text, score) in enumerate(zip(body.documents, scores, strict=True))
    ]
    results.sort(key=lambda result: -float(str(result["relevance_score"])))
    shown = results[: body.top_n or None]
    return Pooled(ask, {"model": ask.model, "results": shown, "usage": _usage(ask)})


def read_score(raw: bytes, limits: Limits) -> Pooled:
    """A score call. Raises `AskError`."""
    try:
        body = _score(raw)
    except msgspec.MsgspecError as error:
        raise AskError(400, str(error)) from error
    first = [body.text_1] if isinstance(body.text_1, str) else body.text_1
    second = [body.text_2] if isinstance(body.text_2, str) else body.text_2
    if len(first) == 1:
        first *= len(second)
    if len(first) != len(second):
        raise AskError(400, "Input lengths must be either 1:1, 1:N or N:N")
    ask, scores = _pairs(body, list(zip(first, second, strict=True)), limits)
    data = [
        {"index": index, "object": "score", "score": score} for index, score in enumerate(scores)
    ]
    return Pooled(ask, {"object": "list", "model": ask.model, "data": data, "usage": _usage(ask)})


def _pairs(
    body: RerankBody | ScoreBody, pairs: list[tuple[str, str]], limits: Limits
) -> tuple[Ask, list[float]]:
    prompts = [pieces_of(first + _SEPARATOR + second) for first, second in pairs]
    ask = _prefill(body, prompts, limits)
    return ask, [(_draw(b"".join(pieces), 0) + 1) / 2 for pieces in prompts]


def _usage(ask: Ask) -> dict[str, int]:
    tokens = ask.prompt_tokens
    return {"prompt_tokens": tokens, "total_tokens": tokens, "completion_tokens": 0}


def pooled_answer(pooled: Pooled, call_id: str, created: int) -> bytes:
    """The body of the answer."""
    return encode({"id": call_id, "created": created} | pooled.answer)
