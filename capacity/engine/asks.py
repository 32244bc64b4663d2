"""What clients may ask: bodies of completions and chat completions, checked as vLLM checks them.

Sampling parameters, `stop`, `logprobs` and formats are accepted without effect: the text means
nothing. What changes tokens, order or shape of the answer has effect.
"""

from dataclasses import dataclass
from typing import Any

import msgspec

from capacity.engine.text import (
    UnknownTokenError,
    chat_pieces,
    draw_key,
    natural_output_tokens,
    piece_of,
    pieces_of,
    words_of,
)
from capacity.simulation.kv import chain_hashes
from capacity.simulation.profiles import EngineProfile
from capacity.simulation.requests import EngineRequest, Finish

DEFAULT_COMPLETION_TOKENS = 16  # OpenAI's and vLLM's default of /v1/completions
MAX_CHOICES = 64  # n x prompts of one call; keeps one call from filling the queue


class AskError(Exception):
    """A refusal before anything is queued: HTTP status, vLLM's type name, the field at fault."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        kind: str = "BadRequestError",
        param: str | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.kind = kind
        self.param = param


class StreamOptions(msgspec.Struct):
    """`stream_options` of a call."""

    include_usage: bool | None = False
    continuous_usage_stats: bool | None = False


class Message(msgspec.Struct):
    """One message; content is text, parts, or absent (an assistant's tool call)."""

    role: str
    content: str | list[dict[str, Any]] | None = None
    tool_calls: msgspec.Raw = msgspec.Raw(b"")


class _Body(msgspec.Struct, kw_only=True):
    model: str | None = None
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    n: int | None = 1
    max_tokens: int | None = None
    min_tokens: int = 0
    ignore_eos: bool = False
    seed: int | None = None
    cache_salt: str | None = None
    priority: int = 0


class ChatBody(_Body, kw_only=True):
    """POST /v1/chat/completions."""

    messages: list[Message]
    max_completion_tokens: int | None = None
    tools: msgspec.Raw = msgspec.Raw(b"")


class CompletionBody(_Body, kw_only=True):
    """POST /v1/completions: texts or token ids, one prompt or several."""

    prompt: str | list[str | int | list[int]]


class TokenizeBody(msgspec.Struct):
    """POST /tokenize: a prompt or a conversation."""

    model: str | None = None
    prompt: str | None = None
    messages: list[Message] | None = None


@dataclass(frozen=True, slots=True)
class Work:
    """One answer to generate: what the scheduler sees, and the text of its tokens."""

    request: EngineRequest
    text: str


@dataclass(frozen=True, slots=True)
class Ask:
    """A checked call. `works` holds `n` answers a prompt, in the order of their `index`."""

    is_chat: bool
    model: str
    works: tuple[Work, ...]
    prompt_tokens: int
    choices: int
    max_tokens: int
    is_stream: bool
    include_usage: bool
    usage_on_each_chunk: bool


@dataclass(frozen=True, slots=True)
class Limits:
    """What a call is checked against."""

    model: str
    profile: EngineProfile
    seed: int
    by_priority: bool


def _message_text(message: Message) -> tuple[str, str]:
    content = message.content
    text = content if isinstance(content, str) else ""
    for part in content if isinstance(content, list) else ():
        if part.get("type") != "text" or not isinstance(part.get("text"), str):
            raise AskError(
                400, f"{part.get('type')!r} parts are not supported by this model", param="messages"
            )
        text += part["text"]
    return message.role, text + bytes(message.tool_calls).decode()


def conversation(messages: list[Message], tools: bytes = b"") -> list[bytes]:
    """Tokens of a conversation. Raises `AskError` for parts that are not text."""
    if not messages:
        raise AskError(400, "messages must not be empty", param="messages")
    return chat_pieces((_message_text(message) for message in messages), tools.decode())


def prompts_of(prompt: str | list[str | int | list[int]]) -> list[list[bytes]]:
    """Tokens of each prompt. Raises `AskError`."""
    if isinstance(prompt, str):
        return [pieces_of(prompt)]
    try:
        ids = [item for item in prompt if isinstance(item, int)]
        if ids and len(ids) == len(prompt):
            return [[piece_of(item) for item in ids]]
        return [
            pieces_of(item) if isinstance(item, str) else [piece_of(one) for one in item]
            for item in prompt
            if not isinstance(item, int)
        ]
    except UnknownTokenError as error:
        raise AskError(400, str(error), param="prompt") from error


def check_common(body: _Body, limits: Limits) -> None:
    """Check what all calls have. Raises `AskError`."""
    if body.model is not None and body.model != limits.model:
        raise AskError(
            404,
            f"The model `{body.model}` does not exist.",
            kind="NotFoundError",
            param="model",
        )
    if body.n is not None and body.n < 1:
        raise AskError(400, f"n must be at least 1, got {body.n}.", param="n")
    if body.stream_options is not None and not body.stream:
        raise AskError(
            400,
            "Stream options can only be defined when `stream=True`.",
            param="stream_options",
        )
    if body.cache_salt == "":
        raise AskError(400, "cache_salt must be a non-empty string.", param="cache_salt")
    if body.priority and not limits.by_priority:
        raise AskError(
            400, "Got priority but priority scheduling is not enabled.", param="priority"
        )


def _output_limit(prompt_tokens: int, asked: int | None, limits: Limits) -> int:
    context = limits.profile.context_tokens
    if asked is not None and asked < 1:
        raise AskError(400, f"max_tokens must be at least 1, got {asked}.", param="max_tokens")
    if prompt_tokens + (asked or 1) > context:
        raise AskError(
            400,
            f"This model's maximum context length is {context} tokens. However, you requested "
            f"{asked or 1} output tokens and your prompt contains {prompt_tokens} input tokens, "
            f"for a total of {prompt_tokens + (asked or 1)} tokens.",
            param="input_tokens",
        )
    return asked if asked is not None else context - prompt_tokens


def _work(pieces: list[bytes], limit: int, body: _Body, limits: Limits, choice: int) -> Work:
    seed = body.seed if body.seed is not None else limits.seed
    key = draw_key(pieces, seed, choice)
    length, finish = limit, Finish.LENGTH
    if not body.ignore_eos:
        natural = max(natural_output_tokens(key), body.min_tokens)
        if natural <= limit:
            length, finish = natural, Finish.STOP
    # The end token of a stopped answer is a token without text.
    text = words_of(key, length if finish is Finish.LENGTH else length - 1)
    block = limits.profile.block_tokens
    request = EngineRequest(
        id="",
        prompt_tokens=len(pieces),
        output_tokens=length,
        finish=finish,
        priority=body.priority,
        block_hashes=chain_hashes(pieces + pieces_of(text), block, body.cache_salt or ""),
    )
    return Work(request, text)


def ask_for(
    body: _Body, prompts: list[list[bytes]], asked: int | None, limits: Limits, *, is_chat: bool
) -> Ask:
    """A checked call of these prompts. Raises `AskError`."""
    count = body.n or 1
    if not prompts or not all(prompts):
        raise AskError(400, "The prompt cannot be empty.", param="prompt")
    if count * len(prompts) > MAX_CHOICES:
        raise AskError(400, f"at most {MAX_CHOICES} answers in one call", param="n")
    works = []
    limit = 0
    for pieces in prompts:
        limit = _output_limit(len(pieces), asked, limits)
        works += [_work(pieces, limit, body, limits, choice) for choice in range(count)]
    options = body.stream_options or StreamOptions()
    return Ask(
        is_chat=is_chat,
        model=body.model or limits.model,
        works=tuple(works),
        prompt_tokens=sum(len(pieces) for pieces in prompts),
        choices=count,
        max_tokens=limit,
        is_stream=bool(body.stream),
        include_usage=bool(options.include_usage),
        usage_on_each_chunk=bool(options.continuous_usage_stats and options.include_usage),
    )


_chat = msgspec.json.Decoder(ChatBody).decode
_completion = msgspec.json.Decoder(CompletionBody).decode
_tokenize = msgspec.json.Decoder(TokenizeBody).decode


def read_chat(raw: bytes, limits: Limits) -> Ask:
    """A chat call. Raises `AskError`."""
    try:
        body = _chat(raw)
    except msgspec.MsgspecError as error:
        raise AskError(400, str(error)) from error
    check_common(body, limits)
    asked = body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
    return ask_for(
        body, [conversation(body.messages, bytes(body.tools))], asked, limits, is_chat=True
    )


def read_completion(raw: bytes, limits: Limits) -> Ask:
    """A completion call. Raises `AskError`."""
    try:
        body = _completion(raw)
    except msgspec.MsgspecError as error:
        raise AskError(400, str(error)) from error
    check_common(body, limits)
    asked = DEFAULT_COMPLETION_TOKENS if body.max_tokens is None else body.max_tokens
    return ask_for(body, prompts_of(body.prompt), asked, limits, is_chat=False)


def read_tokenize(raw: bytes) -> list[bytes]:
    """Tokens that /tokenize is asked for. Raises `AskError`."""
    try:
        body = _tokenize(raw)
    except msgspec.MsgspecError as error:
        raise AskError(400, str(error)) from error
    if body.messages is not None:
        return conversation(body.messages)
    return pieces_of(body.prompt or "")
