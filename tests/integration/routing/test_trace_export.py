"""Export of spans: what a dead collector costs, what a drain sends, and nothing without one."""

import time
from pathlib import Path

import httpx

from tests.gatewaying import body_of, serving
from tests.stack import ACME_KEY, free_port, wait_until
from tests.tracing import CLIENT, SERVER, Collector, metrics_of, new_trace, spans_in
from tests.upstream import UpstreamThread


def test_a_dead_collector_costs_its_spans_alone(tmp_path: Path, store: object) -> None:
    env = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{free_port()}",
        "OTEL_EXPORTER_OTLP_TIMEOUT": "1",
        "OTEL_BSP_SCHEDULE_DELAY": "50",
        "OTEL_BSP_MAX_QUEUE_SIZE": "4",
        "OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "4",
    }
    with UpstreamThread() as upstream, serving(tmp_path, upstream, env=env) as gateway:
        for _ in range(20):
            assert gateway.chat().status_code == 200
        # Two a call: some by a full queue at once, the rest with the batches that nobody took.
        wait_until(lambda: spans_in(gateway, "dropped") == 40, 15, "all spans dropped")
        assert spans_in(gateway, "exported") == 0
        assert "Queue full" not in gateway.log.read_text()
        since_s = time.monotonic()
        assert gateway.stop() == 0
        assert time.monotonic() - since_s < 8


def test_a_drain_sends_what_is_queued(tmp_path: Path, store: object) -> None:
    with Collector() as collector, UpstreamThread() as upstream:
        env = collector.environment | {"OTEL_BSP_SCHEDULE_DELAY": "3600000"}
        with serving(tmp_path, upstream, env=env) as gateway:
            assert gateway.chat().status_code == 200
            assert collector.spans == []
            assert gateway.stop() == 0
        assert [span.kind for span in collector.spans] == [CLIENT, SERVER]


def test_without_a_collector_nothing_of_it_is_there(tmp_path: Path, store: object) -> None:
    with UpstreamThread() as upstream, serving(tmp_path, upstream) as gateway:
        _, headers = new_trace()
        reply = httpx.post(
            f"{gateway.url}/v1/chat/completions",
            json=body_of(),
            headers=headers | {"authorization": f"Bearer {ACME_KEY}"},
            trust_env=False,
        )
        assert reply.status_code == 200
        assert upstream.completions[0].header("traceparent") is None
        assert "headrace_spans_total" not in metrics_of(gateway)
