"""The smallest request that shows that an upstream works, by what the upstream can do."""

from collections.abc import Collection
from typing import Any

import msgspec

from routing.gateway.dialects.anthropic import MESSAGES
from routing.gateway.dialects.openai import CHAT, COMPLETIONS, EMBEDDINGS, RERANK, SCORE, TOKENIZE
from routing.gateway.dialects.operation import Operation
from routing.gateway.dialects.responses import RESPONSES

_PING = [{"role": "user", "content": "ping"}]
_LEAST_OUTPUT = 16  # of a response, as its provider has it
_BODIES: tuple[tuple[Operation, dict[str, Any]], ...] = (
    (CHAT, {"messages": _PING, "max_tokens": 1}),
    (MESSAGES, {"messages": _PING, "max_tokens": 1}),
    (COMPLETIONS, {"prompt": "ping", "max_tokens": 1}),
    (RESPONSES, {"input": "ping", "max_output_tokens": _LEAST_OUTPUT}),
    (EMBEDDINGS, {"input": "ping"}),
    (RERANK, {"query": "ping", "documents": ["pong"]}),
    (SCORE, {"text_1": "ping", "text_2": "pong"}),
    (TOKENIZE, {"prompt": "ping"}),
)


def probe_of(model: str, capabilities: Collection[str]) -> tuple[Operation, bytes]:
    """(operation, body) of a probe; of what can do nothing here, a chat that will be refused."""
    able = [(one, body) for one, body in _BODIES if one.name in capabilities] or [_BODIES[0]]
    operation, body = able[0]
    return operation, msgspec.json.encode({"model": model} | body)
