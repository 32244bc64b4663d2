"""A small OTLP collector over HTTP: keeps what gateways export, read by the library's own messages.

with Collector() as collector:
    ... collector.spans_of(trace_id, 2) ... collector.raw
"""

import random
import re
import threading
import time
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from tests.stack import GatewayProcess

SERVER, CLIENT = Span.SPAN_KIND_SERVER, Span.SPAN_KIND_CLIENT


@dataclass(frozen=True)
class Seen:
    """One span as it arrived; ids in hex, times in Unix seconds."""

    trace_id: str
    span_id: str
    parent_id: str
    name: str
    kind: int
    start_s: float
    end_s: float
    values: dict[str, Any]
    is_error: bool
    message: str
    resource: dict[str, Any]


def values_of(pairs: Any) -> dict[str, Any]:
    """Attributes as a dict."""
    return {pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in pairs}


class Collector:
    """Listens on `port` (0: any); `spans` and `raw` grow as batches arrive."""

    def __init__(self, port: int = 0) -> None:
        self.spans: list[Seen] = []
        self.raw: list[bytes] = []
        self.headers: list[dict[str, str]] = []
        self._came = threading.Condition()
        collector = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                collector._take(self.path, {k.lower(): v for k, v in self.headers.items()}, body)
                answer = ExportTraceServiceResponse().SerializeToString()
                self.send_response(200)
                self.send_header("content-type", "application/x-protobuf")
                self.send_header("content-length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    def __enter__(self) -> "Collector":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(5)

    @property
    def environment(self) -> dict[str, str]:
        """What tells a gateway of it; batches leave soon."""
        port = self._server.server_port
        return {
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{port}",
            "OTEL_BSP_SCHEDULE_DELAY": "50",
        }

    def spans_of(self, trace_id: str, count: int, timeout_s: float = 10.0) -> list[Seen]:
        """The `count` spans of a trace, by their start; the call's own is first."""

        def found() -> list[Seen]:
            return [span for span in self.spans if span.trace_id == trace_id]

        with self._came:
            self._came.wait_for(lambda: len(found()) >= count, timeout_s)
        spans = sorted(found(), key=lambda span: (span.start_s, span.kind == CLIENT))
        assert len(spans) == count, [span.name for span in spans]
        return spans

    def spans_with(self, name: str, value: object, count: int) -> list[Seen]:
        """The spans of the trace in which a span has this attribute."""

        def found() -> str:
            return next((s.trace_id for s in self.spans if s.values.get(name) == value), "")

        end_s = time.monotonic() + 10
        with self._came:
            self._came.wait_for(lambda: bool(found()), end_s - time.monotonic())
        return self.spans_of(found(), count)

    def _take(self, path: str, headers: dict[str, str], body: bytes) -> None:
        assert path == "/v1/traces"
        message = ExportTraceServiceRequest.FromString(body)
        with self._came:
            self.raw.append(body)
            self.headers.append(headers)
            for part in message.resource_spans:
                resource = values_of(part.resource.attributes)
                for scope in part.scope_spans:
                    self.spans += [_seen(span, resource) for span in scope.spans]
            self._came.notify_all()


def _seen(span: Span, resource: dict[str, Any]) -> Seen:
    return Seen(
        span.trace_id.hex(),
        span.span_id.hex(),
        span.parent_span_id.hex(),
        span.name,
        span.kind,
        span.start_time_unix_nano / 1e9,
        span.end_time_unix_nano / 1e9,
        values_of(span.attributes),
        span.status.code == 2,
        span.status.message,
        resource,
    )


def new_trace(flags: str = "01") -> tuple[str, dict[str, str]]:
    """(trace id, headers) of a caller's span `00f067aa0ba902b7`."""
    trace_id = f"{random.getrandbits(128) | 1:032x}"
    return trace_id, {"traceparent": f"00-{trace_id}-00f067aa0ba902b7-{flags}"}


def metrics_of(gateway: GatewayProcess) -> str:
    """The metrics page."""
    return httpx.get(f"{gateway.admin_url}/metrics", trust_env=False).text


def spans_in(gateway: GatewayProcess, outcome: str) -> int:
    """Spans of that outcome on the metrics page; -1 where it names none."""
    found = re.search(
        rf'^headrace_spans_total{{outcome="{outcome}"}} (\d+)$', metrics_of(gateway), re.MULTILINE
    )
    return int(found[1]) if found else -1
