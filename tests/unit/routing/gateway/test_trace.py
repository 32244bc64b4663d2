"""Trace contexts: what a `traceparent` is, who samples, and when nothing of it is loaded."""

import asyncio
import logging
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from routing.contracts.capabilities import ApiStyle
from routing.gateway.config import from_environment
from routing.gateway.spans import Spans
from routing.gateway.trace import Parent, open_spans, read_traceparent
from tests.stack import pool

ROOT = Path(__file__).resolve().parents[4]
TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
ENVIRONMENT = {"REDIS_URL": "redis://h", "HEADRACE_STATE": "/s", "HEADRACE_KEY_PEPPER": "p"}
ENDPOINT = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9"}


@pytest.mark.parametrize(
    ("raw", "flags"),
    [(f"00-{TRACE}-{SPAN}-01", 1), (f"00-{TRACE}-{SPAN}-00", 0), (f"01-{TRACE}-{SPAN}-03-more", 3)],
)
def test_a_callers_span_is_read(raw: str, flags: int) -> None:
    assert read_traceparent(raw.encode()) == Parent(int(TRACE, 16), int(SPAN, 16), flags)


@pytest.mark.parametrize(
    "raw",
    ["", "junk", f"00-{TRACE}-{SPAN}", f"ff-{TRACE}-{SPAN}-01", f"00-{TRACE}-{SPAN}-01-more",
     f"00-{'0' * 32}-{SPAN}-01", f"00-{TRACE}-{'0' * 16}-01", f"00-{TRACE.upper()}-{SPAN}-01",
     f"00-{TRACE}-{SPAN}-01\n", f" 00-{TRACE}-{SPAN}-01"],
)  # fmt: skip
def test_what_is_no_traceparent_names_no_span(raw: str) -> None:
    assert read_traceparent(raw.encode()) is None


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Spans]]:
    """Makes the exporter under a sampler; all are closed at the end."""
    made: list[Spans] = []

    def make(sampler: str, argument: str = "") -> Spans:
        monkeypatch.setenv("OTEL_TRACES_SAMPLER", sampler)
        monkeypatch.setenv("OTEL_TRACES_SAMPLER_ARG", argument)
        made.append(Spans("g0", "1"))
        return made[-1]

    yield make
    for spans in made:
        asyncio.run(spans.close(5))


@pytest.mark.parametrize(
    ("sampler", "argument", "kept", "unkept", "alone"),
    [
        ("parentbased_always_on", "", True, False, True),
        ("parentbased_always_off", "", True, False, False),
        ("parentbased_traceidratio", "0", True, False, False),
        ("traceidratio", "0", False, False, False),
        ("traceidratio", "1", True, True, True),
        ("always_off", "", False, False, False),
    ],
)
def test_the_sampler_of_the_environment_decides(
    opened: Callable[..., Spans],
    sampler: str,
    argument: str,
    kept: bool,
    unkept: bool,
    alone: bool,
) -> None:
    spans = opened(sampler, argument)
    headers = [f"00-{TRACE}-{SPAN}-01", f"00-{TRACE}-{SPAN}-00", ""]
    found = [spans.begin({b"traceparent": raw.encode()}) for raw in headers]
    assert [trace.is_sampled for trace in found] == [kept, unkept, alone]
    line = found[0].forwarded(pool("p", []), "r", "m")
    assert line.startswith(f"traceparent: 00-{TRACE}-".encode())
    assert line.endswith(b"-01\r\n" if kept else b"-00\r\n")


def test_a_hosted_provider_is_told_of_no_trace(opened: Callable[..., Spans]) -> None:
    import msgspec

    hosted = msgspec.structs.replace(pool("p", []), style=ApiStyle.OPENAI)
    trace = opened("always_on").begin({})
    assert trace.forwarded(hosted, "r", "m") == b""
    assert len(trace.hops) == 1


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": " "},
        ENDPOINT | {"OTEL_SDK_DISABLED": "true"},
        ENDPOINT | {"OTEL_TRACES_EXPORTER": "none"},
    ],
)
def test_spans_are_off_unless_a_collector_is_named(environ: dict[str, str]) -> None:
    assert open_spans(from_environment(ENVIRONMENT), environ) is None


def test_a_protocol_that_is_not_spoken_is_named_and_costs_no_service(
    caplog: pytest.LogCaptureFixture,
) -> None:
    environ = ENDPOINT | {"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}
    with caplog.at_level(logging.ERROR):
        assert open_spans(from_environment(ENVIRONMENT), environ) is None
    assert "OTEL_EXPORTER_OTLP_PROTOCOL must be http/protobuf, not grpc" in caplog.text


def test_a_variable_that_cannot_be_used_costs_no_service(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "0")
    with caplog.at_level(logging.ERROR):
        assert open_spans(from_environment(ENVIRONMENT), ENDPOINT) is None
    assert "no spans: a variable OTEL_* cannot be used" in caplog.text


_LOADED = """
import sys
import routing.gateway.process
from routing.gateway.config import from_environment
from routing.gateway.trace import open_spans
assert open_spans(from_environment({environment}), {{}}) is None
ours = ("routing.gateway.spans", "opentelemetry.sdk.trace", "opentelemetry.exporter", "google")
print([name for name in sys.modules if name.startswith(ours)])
sys.modules["opentelemetry.exporter"] = None
assert open_spans(from_environment({environment}), {endpoint}) is None
"""


def test_a_gateway_without_spans_imports_nothing_of_them() -> None:
    code = _LOADED.format(environment=ENVIRONMENT, endpoint=ENDPOINT)
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.stdout == "[]\n", done.stderr
    # Asked for, but the packages are missing: one line says what to install.
    assert "pip install --require-hashes -r requirements-tracing.lock" in done.stderr
