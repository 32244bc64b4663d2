"""Every operation that exists. What is not here is 404: no path reaches an engine unmetered."""

from routing.gateway.dialects.anthropic import COUNT_TOKENS, MESSAGES
from routing.gateway.dialects.openai import (
    CHAT,
    COMPLETIONS,
    EMBEDDINGS,
    RERANK,
    SCORE,
    TOKENIZE,
)
from routing.gateway.dialects.operation import Operation
from routing.gateway.dialects.responses import RESPONSES

OPERATIONS = (
    CHAT, COMPLETIONS, RESPONSES, MESSAGES, COUNT_TOKENS, EMBEDDINGS, RERANK, SCORE, TOKENIZE,
)  # fmt: skip
BY_PATH: dict[bytes, Operation] = {operation.path: operation for operation in OPERATIONS}
