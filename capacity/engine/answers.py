"""Bodies that the engine answers with, in vLLM's shape."""

from typing import Any

import msgspec

from capacity.engine.asks import Ask
from capacity.engine.loop import Call, Flight

encode = msgspec.json.Encoder().encode
DONE = b"data: [DONE]\n\n"
ENGINE_DIED = "EngineCore encountered an issue. See stack trace (above) for the root cause."


def error_body(status: int, message: str, kind: str, param: str | None = None) -> bytes:
    """vLLM's error object; `code` is the status as a number."""
    error = {"message": message, "type": kind, "param": param, "code": status}
    return encode({"error": error})


def died_event() -> bytes:
    """What a live stream gets when the engine stops under it; `[DONE]` follows."""
    return b"data: " + error_body(500, ENGINE_DIED, "InternalServerError") + b"\n\n" + DONE


def usage_of(call: Call, block_tokens: int, *, made_tokens: int, details: bool) -> dict[str, Any]:
    """The usage object; cached tokens are those of the first answer, as vLLM reports."""
    prompt = call.ask.prompt_tokens
    usage: dict[str, Any] = {
        "prompt_tokens": prompt,
        "total_tokens": prompt + made_tokens,
        "completion_tokens": made_tokens,
    }
    if details:
        cached = call.flights[0].generation.cached_tokens
        created = prompt // block_tokens * block_tokens - cached if call.ask.is_chat else None
        usage["prompt_tokens_details"] = {
            "cached_tokens": cached,
            "created_cache_tokens": created,
            "multimodal_tokens": None,
        }
    return usage


class StreamWriter:
    """Events of one call: everything that does not change from token to token is made once."""

    __slots__ = ("_block_tokens", "_call", "_heads", "_started", "_tail")

    def __init__(self, call: Call, created: int, block_tokens: int) -> None:
        ask = call.ask
        kind = "chat.completion.chunk" if ask.is_chat else "text_completion"
        base = encode({"id": call.id, "object": kind, "created": created, "model": ask.model})
        lead = b"data: " + base[:-1]
        field = b'"delta":{"content":"' if ask.is_chat else b'"text":"'
        self._heads = [
            lead + b',"choices":[{"index":%d,' % flight.index + field for flight in call.flights
        ]
        self._tail = lead
        self._call = call
        self._block_tokens = block_tokens
        self._started: set[int] = set()

    def events(self) -> bytes:
        """Events for all tokens that are ready and unwritten."""
        return b"".join(
            self._event(flight)
            for flight in self._call.flights
            if flight.ready_tokens > flight.written_tokens
        )

    def _event(self, flight: Flight) -> bytes:
        ask = self._call.ask
        lead = b""
        if ask.is_chat and flight.index not in self._started:
            self._started.add(flight.index)
            lead = self._role(flight)
        text = flight.unwritten().encode()  # letters, spaces and dots: nothing to escape
        close = b'"}' if ask.is_chat else b'"'
        finish = b"null"
        if flight.is_done and flight.generation.finish is not None:
            finish = b'"%s"' % flight.generation.finish.value.encode()
        end = b',"logprobs":null,"finish_reason":' + finish + b',"stop_reason":null}]'
        usage = b""
        if ask.usage_on_each_chunk:
            made = sum(one.written_tokens for one in self._call.flights)
            usage = b',"usage":' + encode(
                usage_of(self._call, self._block_tokens, made_tokens=made, details=False)
            )
        return b"".join((lead, self._heads[flight.index], text, close, end, usage, b"}\n\n"))

    def _role(self, flight: Flight) -> bytes:
        choice = (
            b',"choices":[{"index":%d,"delta":{"role":"assistant","content":""},'
            b'"logprobs":null,"finish_reason":null}]}\n\n' % flight.index
        )
        return self._tail + choice

    def end(self) -> bytes:
        """Usage, if the client asked for it, and the end of the stream."""
        if not self._call.ask.include_usage:
            return DONE
        usage = usage_of(
            self._call, self._block_tokens, made_tokens=_made(self._call), details=True
        )
        return self._tail + b',"choices":[],"usage":' + encode(usage) + b"}\n\n" + DONE


def _made(call: Call) -> int:
    return sum(flight.ready_tokens for flight in call.flights)


def whole_answer(call: Call, created: int, block_tokens: int) -> bytes:
    """The body of a call that does not stream."""
    ask = call.ask
    usage = usage_of(call, block_tokens, made_tokens=_made(call), details=True)
    return encode(
        {
            "id": call.id,
            "object": "chat.completion" if ask.is_chat else "text_completion",
            "created": created,
            "model": ask.model,
            "choices": [_choice(ask, flight) for flight in call.flights],
            "usage": usage,
        }
    )


def _choice(ask: Ask, flight: Flight) -> dict[str, Any]:
    choice: dict[str, Any] = {"index": flight.index}
    text = flight.unwritten()
    if ask.is_chat:
        choice["message"] = {
            "role": "assistant",
            "content": text,
            "refusal": None,
            "tool_calls": [],
        }
    else:
        choice["text"] = text
    finish = flight.generation.finish
    choice |= {
        "logprobs": None,
        "finish_reason": finish.value if finish is not None else None,
        "stop_reason": None,
    }
    return choice
