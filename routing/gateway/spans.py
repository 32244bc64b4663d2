"""Spans of requests, made by OpenTelemetry's SDK and exported by OTLP over HTTP.

Imported only where a collector is named. A request's spans are made at its end: one for the call,
one for each try; what they say is in `span_values`. The SDK's own thread sends them. What does not
fit the queue, or cannot be delivered, is counted.
"""

import asyncio
import contextlib
import logging
import os
import sys
import threading
import time
from collections.abc import Mapping, Sequence

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.sdk.trace.sampling import Decision
from opentelemetry.trace import (
    NonRecordingSpan,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    set_span_in_context,
)

from routing.contracts.usage import UsageEvent
from routing.gateway.exchange import Exchange
from routing.gateway.span_values import (
    CLIENT_CLOSED,
    call_name,
    call_values,
    hop_name,
    hop_values,
    is_our_fault,
)
from routing.gateway.trace import (
    RANDOM,
    SAMPLED,
    TRACEPARENT,
    Hop,
    Parent,
    Trace,
    new_id,
    read_traceparent,
)

log = logging.getLogger(__name__)

SERVICE = "headrace-gateway"
SCOPE = "headrace.gateway"
QUEUE_SPANS = 2048  # OTEL_BSP_MAX_QUEUE_SIZE when unset, as OpenTelemetry has it; about 3 kB each
TRACE_ID_BITS = 128
# Encoding a batch takes tens of milliseconds of Python: the loop gets its turn after this long, not
# after the usual 5 ms.
SWITCH_S = 0.0005
_ERROR = Status(StatusCode.ERROR)  # never with a description: upstreams' words quote prompts


class _Ids(IdGenerator):
    """Gives spans the ids that were chosen, and sent to engines, while the request ran."""

    def __init__(self) -> None:
        self.trace_id = 0
        self.span_id = 0

    def generate_trace_id(self) -> int:
        """Of a request without a caller's span."""
        return self.trace_id

    def generate_span_id(self) -> int:
        """Of the span in hand."""
        return self.span_id

    def is_trace_id_random(self) -> bool:
        """Ours are."""
        return True


class _Counted(SpanExporter):
    """The exporter, with counts; the SDK's thread alone calls `export`."""

    def __init__(self, inner: SpanExporter) -> None:
        self._inner = inner
        self.taken = 0  # out of the queue
        self.exported = 0
        self.lost = 0

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Send a batch; blocks for OTEL_EXPORTER_OTLP_TIMEOUT (10 s) at most."""
        self.taken += len(spans)
        result = SpanExportResult.FAILURE
        try:
            result = self._inner.export(spans)
        finally:
            if result is SpanExportResult.SUCCESS:
                self.exported += len(spans)
            else:
                self.lost += len(spans)
        return result

    def shutdown(self) -> None:
        """No more batches."""
        self._inner.shutdown()


class Spans:
    """What makes spans and passes them on. Owned by the event loop, which it never holds up."""

    def __init__(self, gateway_id: str, version: str) -> None:
        """Reads `OTEL_*`; raises ValueError where one of them cannot be used."""
        sys.setswitchinterval(SWITCH_S)
        # One line for each batch that is lost, not one for each of its tries.
        logging.getLogger("opentelemetry").setLevel(logging.ERROR)
        self._ids = _Ids()
        self._exporter = _Counted(OTLPSpanExporter())
        self._provider = TracerProvider(
            resource=_resource(gateway_id, version), shutdown_on_exit=False, id_generator=self._ids
        )
        self._queue_spans = int(os.environ.get("OTEL_BSP_MAX_QUEUE_SIZE") or QUEUE_SPANS)
        self._provider.add_span_processor(
            BatchSpanProcessor(self._exporter, max_queue_size=self._queue_spans)
        )
        self._tracer = self._provider.get_tracer(SCOPE, version)
        self._queued = 0  # ever
        self._dropped = 0

    # -- while the request runs

    def begin(self, headers: Mapping[bytes, bytes]) -> Trace:
        """The trace of a request; the sampler decides now, since engines are told at once."""
        parent = read_traceparent(headers.get(TRACEPARENT))
        trace_id = parent.trace_id if parent is not None else new_id(TRACE_ID_BITS)
        found = self._provider.sampler.should_sample(_context(parent), trace_id, SERVICE)
        return Trace(
            self, parent, trace_id, is_sampled=found.decision is Decision.RECORD_AND_SAMPLE
        )

    # -- at its end

    def export(self, exchange: Exchange, trace: Trace, event: UsageEvent | None) -> None:
        """Make the request's spans and queue them; if they do not all fit, count them as dropped.

        Looked at before anything is made: while no collector takes them, that is all it costs.
        """
        count = 1 + len(trace.hops)
        if self.queue_count + count > self._queue_spans:
            self._dropped += count
            return
        self._queued += count
        self._ids.trace_id, self._ids.span_id = trace.trace_id, trace.span_id
        server = self._tracer.start_span(
            call_name(exchange),
            _context(trace.parent),
            SpanKind.SERVER,
            call_values(exchange, trace, event),
            start_time=_ns(exchange, exchange.arrived_s),
        )
        inside = set_span_in_context(server, Context())
        for hop in trace.hops:
            self._export_hop(exchange, hop, event if hop is trace.hops[-1] else None, inside)
        if is_our_fault(exchange, event):
            server.set_status(_ERROR)
        server.end(_ns(exchange, time.monotonic()))

    def _export_hop(
        self, exchange: Exchange, hop: Hop, event: UsageEvent | None, inside: Context
    ) -> None:
        self._ids.span_id = hop.span_id
        span = self._tracer.start_span(
            hop_name(exchange, hop),
            inside,
            SpanKind.CLIENT,
            hop_values(exchange, hop, event),
            start_time=_ns(exchange, hop.started_s),
        )
        if hop.error and hop.error != CLIENT_CLOSED:
            span.set_status(_ERROR)
        span.end(_ns(exchange, hop.ended_s))

    # -- counts, and the end

    @property
    def queue_count(self) -> int:
        """Spans that wait for the exporter."""
        return self._queued - self._exporter.taken

    @property
    def counts(self) -> dict[str, int]:
        """Spans `exported`, and `dropped` by a full queue or with a lost batch."""
        dropped = self._dropped + self._exporter.lost
        return {"exported": self._exporter.exported, "dropped": dropped}

    async def close(self, limit_s: float) -> None:
        """Send what is queued, for `limit_s` seconds at most; the thread dies with the process."""
        loop = asyncio.get_running_loop()
        done = asyncio.Event()

        def flush() -> None:
            self._provider.shutdown()
            with contextlib.suppress(RuntimeError):  # too late: the loop is closed
                loop.call_soon_threadsafe(done.set)

        threading.Thread(target=flush, name="spans-flush", daemon=True).start()
        try:
            async with asyncio.timeout(limit_s):
                await done.wait()
        except TimeoutError:
            log.warning("%d spans could not be sent before the end", self.queue_count)


def _resource(gateway_id: str, version: str) -> Resource:
    """What `OTEL_SERVICE_NAME` and `OTEL_RESOURCE_ATTRIBUTES` say, over our own names."""
    ours = {
        "service.name": SERVICE,
        "service.version": version,
        "service.instance.id": gateway_id,
    }
    return Resource.create({**ours, **OTELResourceDetector().detect().attributes})


def _context(parent: Parent | None) -> Context:
    """The caller's span, as the SDK wants it."""
    if parent is None:
        return Context()
    flags = TraceFlags(parent.flags & (SAMPLED | RANDOM))
    span = SpanContext(parent.trace_id, parent.span_id, is_remote=True, trace_flags=flags)
    return set_span_in_context(NonRecordingSpan(span), Context())


def _ns(exchange: Exchange, at_s: float) -> int:
    """Unix nanoseconds of a monotonic instant, on the store's clock as the ledger row has it."""
    return exchange.arrived_ms * 1_000_000 + int((at_s - exchange.arrived_s) * 1e9)
