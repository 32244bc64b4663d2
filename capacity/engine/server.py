"""vLLM's HTTP endpoints over the engine, as a plain ASGI application on uvicorn."""

import asyncio
import socket
import struct
import time
import uuid
from collections.abc import Awaitable, Callable
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from capacity.engine.answers import (
    ENGINE_DIED,
    StreamWriter,
    died_event,
    encode,
    error_body,
    whole_answer,
)
from capacity.engine.asks import (
    Ask,
    AskError,
    Limits,
    read_chat,
    read_completion,
    read_tokenize,
)
from capacity.engine.faults import HEALTHY, Faults, MetricsFault
from capacity.engine.loop import Call, Engine
from capacity.engine.text import id_of

VLLM_VERSION = "0.32.0"  # whose behaviour is mirrored
MAX_BODY_BYTES = 32 * 1024 * 1024  # a context of text is far below; keeps one call from our memory
JSON = b"application/json"

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]
Headers = list[tuple[bytes, bytes]]


class EngineProtocol(HttpToolsProtocol):
    """uvicorn's protocol; lets the application reset its connection (a scripted fault)."""

    def on_message_begin(self) -> None:
        """Put the reset beside the request."""
        super().on_message_begin()
        self.scope["state"]["headrace.reset"] = self._reset

    def _reset(self) -> None:
        raw = self.transport.get_extra_info("socket")
        if raw is not None:  # close with RST, not FIN
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.transport.abort()


class _Exchange:
    """One HTTP request and what was answered."""

    __slots__ = ("headers", "receive", "scope", "send", "status")

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.scope = scope
        self.receive = receive
        self.send = send
        self.status = 0
        self.headers: Headers = []

    async def start(self, status: int, content_type: bytes, length: int | None = None) -> None:
        self.status = status
        headers = [*self.headers, (b"content-type", content_type)]
        if length is not None:
            headers.append((b"content-length", b"%d" % length))
        await self.send({"type": "http.response.start", "status": status, "headers": headers})

    async def body(self, chunk: bytes, *, more: bool = False) -> None:
        await self.send({"type": "http.response.body", "body": chunk, "more_body": more})

    async def answer(self, status: int, body: bytes, content_type: bytes = JSON) -> None:
        await self.start(status, content_type, len(body))
        await self.body(body)

    async def read(self) -> bytes | None:
        """The whole body, None if the client left; raises `AskError` when it is too long."""
        parts: list[bytes] = []
        length = 0
        while True:
            message = await self.receive()
            if message["type"] == "http.disconnect":
                return None
            parts.append(message.get("body", b""))
            length += len(parts[-1])
            if length > MAX_BODY_BYTES:
                raise AskError(413, f"the body is longer than {MAX_BODY_BYTES} bytes")
            if not message.get("more_body"):
                return b"".join(parts)

    async def client_left(self) -> None:
        """Return when the client closes (or the answer is complete)."""
        while (await self.receive())["type"] != "http.disconnect":
            pass


class EngineApp:
    """The routes. One instance a process."""

    def __init__(self, engine: Engine) -> None:
        config = engine.config
        self.engine = engine
        self.faults: Faults = HEALTHY
        self.server_load = 0
        self._limits = Limits(config.model, config.profile, config.seed, config.by_priority)
        self._created = int(time.time())
        self._frozen_metrics = b""
        self._routes: dict[tuple[str, str], Callable[[_Exchange], Awaitable[None]]] = {
            ("GET", "/health"): self._health,
            ("GET", "/ping"): self._health,
            ("POST", "/ping"): self._health,
            ("GET", "/version"): self._version,
            ("GET", "/load"): self._load,
            ("GET", "/metrics"): self._metrics,
            ("GET", "/v1/models"): self._models,
            ("POST", "/tokenize"): self._tokenize,
            ("POST", "/v1/chat/completions"): self._chat,
            ("POST", "/v1/completions"): self._completion,
        }
        self._paths = {path for _method, path in self._routes}

    def set_faults(self, faults: Faults) -> None:
        """Behave so from now on."""
        if faults.metrics is MetricsFault.FROZEN and self.faults.metrics is not faults.metrics:
            self._frozen_metrics = self.engine.metrics.registry.text()
        self.faults = faults
        self.engine.set_slow_factor(faults.slow_factor)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            return
        exchange = _Exchange(scope, receive, send)
        method, path = scope["method"], scope["path"]
        route = self._routes.get((method, path))
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        if route is None:
            status = 405 if path in self._paths else 404
            detail = "Method Not Allowed" if path in self._paths else "Not Found"
            await exchange.answer(status, encode({"detail": detail}))
            return
        await route(exchange)
        self.engine.metrics.http_request(
            path, method, exchange.status or 499, loop.time() - began_s
        )

    async def _health(self, exchange: _Exchange) -> None:
        await exchange.answer(self.faults.health_status, b"")

    async def _version(self, exchange: _Exchange) -> None:
        await exchange.answer(200, encode({"version": VLLM_VERSION}))

    async def _load(self, exchange: _Exchange) -> None:
        await exchange.answer(200, encode({"server_load": self.server_load}))

    async def _metrics(self, exchange: _Exchange) -> None:
        fault = self.faults.metrics
        if fault is MetricsFault.TIMEOUT:
            await exchange.client_left()
            return
        frozen = fault is MetricsFault.FROZEN
        text = self._frozen_metrics if frozen else self.engine.metrics.registry.text()
        await exchange.answer(200, text, b"text/plain; version=0.0.4; charset=utf-8")

    async def _models(self, exchange: _Exchange) -> None:
        config = self.engine.config
        model = {
            "id": config.model,
            "object": "model",
            "created": self._created,
            "owned_by": "vllm",
            "root": config.artifact or config.model,
            "parent": None,
            "max_model_len": config.profile.context_tokens,
            "permission": [],
        }
        await exchange.answer(200, encode({"object": "list", "data": [model]}))

    async def _tokenize(self, exchange: _Exchange) -> None:
        try:
            raw = await exchange.read()
            if raw is None:
                return
            pieces = read_tokenize(raw)
        except AskError as error:
            await self._refuse(exchange, error)
            return
        body = {
            "count": len(pieces),
            "max_model_len": self.engine.config.profile.context_tokens,
            "tokens": [id_of(piece) for piece in pieces],
            "token_strs": None,
        }
        await exchange.answer(200, encode(body))

    async def _chat(self, exchange: _Exchange) -> None:
        await self._generate(exchange, read_chat, "chatcmpl-")

    async def _completion(self, exchange: _Exchange) -> None:
        await self._generate(exchange, read_completion, "cmpl-")

    async def _refuse(self, exchange: _Exchange, error: AskError) -> None:
        body = error_body(error.status, error.message, error.kind, error.param)
        await exchange.answer(error.status, body)

    async def _generate(
        self, exchange: _Exchange, reader: Callable[[bytes, Limits], Ask], prefix: str
    ) -> None:
        request_id = _request_id(exchange.scope)
        exchange.headers = [(b"x-request-id", request_id)]
        arrived_s = asyncio.get_running_loop().time()
        self.server_load += 1
        try:
            raw = await exchange.read()
            if raw is None:
                return
            if self.faults.hang_completions:
                await exchange.client_left()
                return
            self._refuse_by_script()
            call_id = prefix + request_id.decode("latin-1")
            call = self.engine.submit(call_id, reader(raw, self._limits), arrived_s)
            await self._watched(exchange, call)
        except AskError as error:
            await self._refuse(exchange, error)
        finally:
            self.server_load -= 1

    def _refuse_by_script(self) -> None:
        if self.faults.refuse_status is not None:
            status = self.faults.refuse_status
            raise AskError(status, "refused by a scripted fault", kind="ScriptedFault")

    async def _watched(self, exchange: _Exchange, call: Call) -> None:
        """Answer a call; when its client leaves, what is left of it is dropped."""
        watcher = asyncio.create_task(exchange.client_left())
        watcher.add_done_callback(lambda _done: call.leave())
        try:
            if call.ask.is_stream:
                await self._stream(exchange, call)
            else:
                await self._whole(exchange, call)
        finally:
            watcher.cancel()
            self.engine.abort(call)

    async def _whole(self, exchange: _Exchange, call: Call) -> None:
        while not (call.is_done or call.is_cut or call.is_left):
            await call.news()
        if call.is_left:
            return
        if call.is_cut:
            raise AskError(500, ENGINE_DIED, kind="InternalServerError")
        block_tokens = self.engine.config.profile.block_tokens
        await exchange.answer(200, whole_answer(call, int(time.time()), block_tokens))

    async def _stream(self, exchange: _Exchange, call: Call) -> None:
        block_tokens = self.engine.config.profile.block_tokens
        writer = StreamWriter(call, int(time.time()), block_tokens)
        await exchange.start(200, b"text/event-stream; charset=utf-8")
        while not call.is_left:
            events = writer.events()
            if call.is_cut:
                await exchange.body(events + died_event())
                return
            if call.is_done:
                await exchange.body(events + writer.end())
                return
            if events:
                await exchange.body(events, more=True)
                if self._is_reset_due(call):
                    exchange.scope["state"]["headrace.reset"]()
                    return
            await call.news()

    def _is_reset_due(self, call: Call) -> bool:
        at = self.faults.reset_at_token
        return at is not None and max(f.written_tokens for f in call.flights) >= at


def _request_id(scope: Scope) -> bytes:
    for name, value in scope["headers"]:
        if name == b"x-request-id":
            return bytes(value)
    return uuid.uuid4().hex.encode()
