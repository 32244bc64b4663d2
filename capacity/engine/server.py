"""vLLM's HTTP endpoints over the engine, as a plain ASGI application on uvicorn."""

import asyncio
import socket
import struct
import time
import uuid
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from capacity.engine.answers import (
    ENGINE_DIED,
    encode,
    error_body,
)
from capacity.engine.asks import (
    AskError,
    Limits,
    conversation,
    read_tokenize,
)
from capacity.engine.faults import HEALTHY, Faults, MetricsFault
from capacity.engine.loop import Call, Engine
from capacity.engine.pooling import (
    Pooled,
    pooled_answer,
    read_embeddings,
    read_rerank,
    read_score,
)
from capacity.engine.shapes import (
    CHAT,
    COMPLETION,
    MESSAGES,
    RESPONSES,
    Shape,
    messages_error,
    messages_in,
)
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
            ("POST", "/v1/messages/count_tokens"): self._count_tokens,
            ("POST", "/v1/chat/completions"): partial(self._generate, CHAT),
            ("POST", "/v1/completions"): partial(self._generate, COMPLETION),
            ("POST", "/v1/messages"): partial(self._generate, MESSAGES),
            ("POST", "/v1/responses"): partial(self._generate, RESPONSES),
            ("POST", "/v1/embeddings"): partial(self._pool, read_embeddings),
            ("POST", "/v1/rerank"): partial(self._pool, read_rerank),
            ("POST", "/v1/score"): partial(self._pool, read_score),
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

    async def _count_tokens(self, exchange: _Exchange) -> None:
        try:
            raw = await exchange.read()
            if raw is None:
                return
            body = messages_in(raw)
            pieces = conversation(body.messages, bytes(body.tools))
        except AskError as error:
            await self._refuse(exchange, error, messages_error)
            return
        await exchange.answer(200, encode({"input_tokens": len(pieces)}))

    async def _refuse(
        self,
        exchange: _Exchange,
        error: AskError,
        words: Callable[[int, str, str, str | None], bytes] = error_body,
    ) -> None:
        body = words(error.status, error.message, error.kind, error.param)
        await exchange.answer(error.status, body)

    async def _pool(self, read: Callable[[bytes, Limits], Pooled], exchange: _Exchange) -> None:
        request_id = _request_id(exchange.scope)
        exchange.headers = [(b"x-request-id", request_id)]
        arrived_s = asyncio.get_running_loop().time()
        self.server_load += 1
        try:
            raw = await exchange.read()
            if raw is None:
                return
            self._refuse_by_script()
            pooled = read(raw, self._limits)
            call = self.engine.submit(request_id.decode("latin-1"), pooled.ask, arrived_s)
            await self._watched(exchange, call, lambda: self._pooled(exchange, call, pooled))
        except AskError as error:
            await self._refuse(exchange, error)
        finally:
            self.server_load -= 1

    async def _pooled(self, exchange: _Exchange, call: Call, pooled: Pooled) -> None:
        if await self._is_whole(call):
            await exchange.answer(200, pooled_answer(pooled, call.id, int(time.time())))

    async def _generate(self, shape: Shape, exchange: _Exchange) -> None:
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
            call_id = shape.id_prefix + request_id.decode("latin-1")
            call = self.engine.submit(call_id, shape.read(raw, self._limits), arrived_s)
            answer = self._stream if call.ask.is_stream else self._whole
            await self._watched(exchange, call, lambda: answer(exchange, call, shape))
        except AskError as error:
            await self._refuse(exchange, error, shape.error)
        finally:
            self.server_load -= 1

    def _refuse_by_script(self) -> None:
        if self.faults.refuse_status is not None:
            status = self.faults.refuse_status
            raise AskError(status, "refused by a scripted fault", kind="ScriptedFault")

    async def _watched(
        self, exchange: _Exchange, call: Call, answer: Callable[[], Awaitable[None]]
    ) -> None:
        """Answer a call; when its client leaves, what is left of it is dropped."""
        watcher = asyncio.create_task(exchange.client_left())
        watcher.add_done_callback(lambda _done: call.leave())
        try:
            await answer()
        finally:
            watcher.cancel()
            self.engine.abort(call)

    @staticmethod
    async def _is_whole(call: Call) -> bool:
        """Wait for a call's end; whether anybody still wants it. Raises `AskError` when cut."""
        while not (call.is_done or call.is_cut or call.is_left):
            await call.news()
        if call.is_cut and not call.is_left:
            raise AskError(500, ENGINE_DIED, kind="InternalServerError")
        return not call.is_left

    async def _whole(self, exchange: _Exchange, call: Call, shape: Shape) -> None:
        if await self._is_whole(call):
            block_tokens = self.engine.config.profile.block_tokens
            await exchange.answer(200, shape.whole(call, int(time.time()), block_tokens))

    async def _stream(self, exchange: _Exchange, call: Call, shape: Shape) -> None:
        block_tokens = self.engine.config.profile.block_tokens
        writer = shape.writer(call, int(time.time()), block_tokens)
        await exchange.start(200, b"text/event-stream; charset=utf-8")
        while not call.is_left:
            events = writer.events()
            if call.is_cut:
                await exchange.body(events + shape.died())
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
