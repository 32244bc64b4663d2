"""The trace context of one request: its caller's span, ours, and one for each try on an endpoint.

Only ids and stamps, kept while the request runs, and only where spans are exported. At the
request's end `routing.gateway.spans` makes the spans of them: nothing else imports OpenTelemetry.
"""

import logging
import os
import random
import re
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from routing.contracts.capabilities import ApiStyle
from routing.contracts.snapshot import PoolEntry
from routing.gateway.config import GatewayConfig

if TYPE_CHECKING:
    from routing.contracts.usage import UsageEvent
    from routing.gateway.exchange import Exchange
    from routing.gateway.spans import Spans

log = logging.getLogger(__name__)

TRACEPARENT = b"traceparent"
SAMPLED = 0x01
RANDOM = 0x02  # the trace id is random enough to sample by
SPAN_ID_BITS = 64
INSTALL = ".venv/bin/python -m pip install --require-hashes -r requirements-tracing.lock"
PROTOCOL = "http/protobuf"
# W3C Trace Context: version, trace id, parent span, flags; of a later version more may follow.
_TRACEPARENT = re.compile(
    rb"(?!ff)([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?\Z"
)


class Parent(NamedTuple):
    """The caller's span, as its `traceparent` names it."""

    trace_id: int
    span_id: int
    flags: int

    @property
    def is_sampled(self) -> bool:
        """Whether the caller keeps its own span."""
        return bool(self.flags & SAMPLED)


def read_traceparent(raw: bytes | None) -> Parent | None:
    """The span that a `traceparent` names; None where it is missing or not one."""
    found = _TRACEPARENT.match(raw) if raw else None
    if found is None or (found[1] == b"00" and found[5] is not None):
        return None
    parent = Parent(int(found[2], 16), int(found[3], 16), int(found[4], 16))
    return parent if parent.trace_id and parent.span_id else None


class Hop:
    """One try on an endpoint. `*_s` are monotonic seconds; `ended_s` is 0 while it runs."""

    __slots__ = ("ended_s", "error", "model", "pool", "replica", "span_id", "started_s")

    def __init__(self, span_id: int, pool: PoolEntry, replica: str, model: str) -> None:
        """`model` is the name that the endpoint was asked for."""
        self.span_id = span_id
        self.pool = pool
        self.replica = replica
        self.model = model
        self.started_s = time.monotonic()
        self.ended_s = 0.0
        self.error = ""

    def end(self, error: str) -> None:
        """It is over; `error` is a reason's code, empty for an answer."""
        self.ended_s = time.monotonic()
        self.error = error


class Trace:
    """Ids and stamps of one request. `*_s` are monotonic seconds, 0 where it never came so far."""

    __slots__ = (
        "_spans",
        "hops",
        "is_sampled",
        "parent",
        "reserved_s",
        "reserving_s",
        "span_id",
        "trace_id",
    )

    def __init__(
        self, spans: "Spans", parent: Parent | None, trace_id: int, *, is_sampled: bool
    ) -> None:
        self._spans = spans
        self.parent = parent
        self.trace_id = trace_id
        self.span_id = new_id(SPAN_ID_BITS)
        self.is_sampled = is_sampled
        self.reserving_s = 0.0
        self.reserved_s = 0.0
        self.hops: list[Hop] = []

    @property
    def flags(self) -> int:
        """W3C flags of our spans."""
        is_random = self.parent.flags & RANDOM if self.parent is not None else RANDOM
        return is_random | (SAMPLED if self.is_sampled else 0)

    def reserving(self) -> None:
        """The store is asked now."""
        self.reserving_s = time.monotonic()

    def reserved(self) -> None:
        """The store has answered."""
        self.reserved_s = time.monotonic()

    def forwarded(self, pool: PoolEntry, replica: str, model: str) -> bytes:
        """A try begins. The header line for its engine, so that the engine's span is its child.

        A hosted provider is told nothing: its callers' traces are nobody else's.
        """
        hop = Hop(new_id(SPAN_ID_BITS), pool, replica, model)
        self.hops.append(hop)
        if pool.style is not ApiStyle.ENGINE:
            return b""
        return b"traceparent: 00-%032x-%016x-%02x\r\n" % (self.trace_id, hop.span_id, self.flags)

    def failed(self, error: str) -> None:
        """The try has failed; another one may follow."""
        self._end_hop(error)

    def ended(self, exchange: "Exchange", event: "UsageEvent | None" = None) -> None:
        """The request is over: export its spans. `event` is its ledger row, if it has one."""
        if not self.is_sampled:
            return
        self._end_hop(event.error_code if event is not None else "")
        self._spans.export(exchange, self, event)

    def _end_hop(self, error: str) -> None:
        if self.hops and not self.hops[-1].ended_s:
            self.hops[-1].end(error)


def new_id(bits: int) -> int:
    """A random id, never 0. Not a secret: ids need to differ, and to be made in a microsecond."""
    return random.getrandbits(bits) or 1


def open_spans(config: GatewayConfig, environ: Mapping[str, str] = os.environ) -> "Spans | None":
    """The exporter that OpenTelemetry's own variables ask for; None without, with no import.

    A wrong setting is logged and costs the spans, never the service: such variables are often
    set for all programs of a host.
    """
    endpoint = _first(environ, "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
    is_off = environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"
    if not endpoint or is_off or environ.get("OTEL_TRACES_EXPORTER") == "none":
        return None
    protocol = _first(environ, "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
    if protocol not in ("", PROTOCOL):
        log.error("no spans: OTEL_EXPORTER_OTLP_PROTOCOL must be %s, not %s", PROTOCOL, protocol)
        return None
    try:
        from routing.gateway.spans import Spans  # noqa: PLC0415 - most gateways never need it

        return Spans(config.gateway_id, config.version)
    except ImportError as error:
        log.error("no spans: %s. Install the packages: %s", error, INSTALL)  # noqa: TRY400
    except (ValueError, TypeError, RuntimeError, OSError) as error:
        log.error("no spans: a variable OTEL_* cannot be used: %s", error)  # noqa: TRY400
    return None


def _first(environ: Mapping[str, str], *names: str) -> str:
    return next((value for name in names if (value := environ.get(name, "").strip())), "")
