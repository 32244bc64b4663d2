"""Spans of requests: their tree, what they say and never say."""

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from routing.contracts.enums import Dimension
from routing.contracts.snapshot import FailurePolicy
from routing.store.pooled import sync_client
from tests.gatewaying import body_of, payloads, serving, text_of
from tests.stack import ACME_KEY, GLOBEX_KEY, GatewayProcess, limit, policy, tenant, wait_until
from tests.tracing import CLIENT, SERVER, Collector, new_trace, spans_in
from tests.upstream import (
    Close,
    Hang,
    Reset,
    Script,
    Seen,
    Send,
    UpstreamThread,
    answer,
    delta,
    event,
    framed,
    json_script,
    sse_head,
    stream_script,
    usage,
)

PROMPT, ANSWER, WORDS = "tell-nobody-the-prompt", "tell-nobody-the-answer", "tell-nobody-the-words"
GOES_ON = policy(failures=FailurePolicy(continue_lost=True))
BUSY = json_script({"error": {"message": f"currently busy: {WORDS}", "code": 503}}, 503)
BROKEN = json_script({"error": {"message": f"{WORDS} in {PROMPT}", "code": 500}}, 500)


@dataclass
class Traced:
    """A gateway that exports, its two replicas and its collector."""

    gateway: GatewayProcess
    upstreams: list[UpstreamThread]
    collector: Collector

    def play(self, *scripts: Script) -> None:
        """Answers of coming requests, wherever they go; the last one repeats."""
        left = list(scripts)

        def choose(seen: Seen) -> Script:
            return left.pop(0) if len(left) > 1 else left[0]

        for upstream in self.upstreams:
            upstream.requests.clear()
            upstream.choose = choose

    def requests(self) -> list[Seen]:
        """What the replicas were asked, in order."""
        seen = [one for upstream in self.upstreams for one in upstream.completions]
        return sorted(seen, key=lambda one: one.arrived_at)

    def call(self, secret: str = ACME_KEY, path: str = "chat/completions", **body: Any):
        """One call in a sampled trace of its own: (trace id, answer)."""
        trace_id, headers = new_trace()
        return trace_id, self.send(headers, secret, path, **body)

    def send(self, headers: dict[str, str], secret: str = ACME_KEY, path: str = "", **body: Any):
        """One call with these headers."""
        with httpx.Client(timeout=30, trust_env=False) as client:
            return client.post(
                f"{self.gateway.url}/v1/{path or 'chat/completions'}",
                json=body_of(**body),
                headers=headers | {"authorization": f"Bearer {secret}"},
            )


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Traced]:
    """One for all tests here: each reads the spans of its own traces."""
    with sync_client(os.environ["REDIS_URL"]) as client:
        client.flushall()
    closed = tenant("globex", (limit(Dimension.REQUESTS, 0),))
    with Collector() as collector, UpstreamThread() as one, UpstreamThread() as two:
        env = collector.environment | {"OTEL_RESOURCE_ATTRIBUTES": "deployment.environment=lab"}
        tenants = {"acme": tenant("acme"), "globex": closed}
        path = tmp_path_factory.mktemp("traced")
        changes = {"tenants": tenants, "policy": GOES_ON}
        with serving(path, one, two, env=env, **changes) as gateway:
            yield Traced(gateway, [one, two], collector)


def test_a_call_is_a_span_and_its_try_a_child_joined_to_caller_and_engine(traced: Traced) -> None:
    traced.play(json_script(answer(used=usage(10, 5, cached=4))))
    trace_id, reply = traced.call(max_tokens=7)
    server, client = traced.collector.spans_of(trace_id, 2)
    assert (server.kind, server.parent_id) == (SERVER, "00f067aa0ba902b7")
    assert (client.kind, client.parent_id) == (CLIENT, server.span_id)
    told = traced.requests()[0].header("traceparent")
    assert told == f"00-{trace_id}-{client.span_id}-01"
    assert (server.name, client.name) == ("POST /v1/chat/completions", "chat alpha-8b")
    request_id = reply.headers["x-request-id"]
    common = {
        "gen_ai.operation.name": "chat",
        "gen_ai.request.model": "alpha-8b",
        "gen_ai.response.model": "alpha-8b",
        "gen_ai.request.max_tokens": 7,
        "gen_ai.request.stream": False,
        "gen_ai.usage.input_tokens": 10,
        "gen_ai.usage.output_tokens": 5,
        "gen_ai.usage.cache_read.input_tokens": 4,
    }
    assert (
        server.values.items()
        >= (
            common
            | {
                "http.response.status_code": 200,
                "http.route": "/v1/chat/completions",
                "gen_ai.provider.name": "headrace",
                "headrace.request.id": request_id,
                "headrace.tenant.id": "acme",
                "headrace.policy.version": "main@1",
                "headrace.attempts": 1,
                "headrace.outcome": "ok",
                "headrace.usage_source": "reported",
                "headrace.task.id": trace_id,
            }
        ).items()
    )
    replica = client.values["headrace.replica"]
    assert replica in ("p1-u1", "p1-u2")
    assert (
        client.values.items()
        >= (
            common
            | {
                "gen_ai.provider.name": "vllm",
                "server.address": replica,
                "headrace.pool": "p1",
                "headrace.region": "local",
            }
        ).items()
    )
    assert server.start_s <= client.start_s <= client.end_s <= server.end_s
    assert 0 < server.values["headrace.reserve_s"] <= client.start_s - server.start_s
    assert (
        server.resource.items()
        >= {
            "service.name": "headrace-gateway",
            "service.instance.id": "g0",
            "deployment.environment": "lab",
        }.items()
    )
    assert not server.is_error
    assert not client.is_error


def test_a_call_without_a_callers_span_begins_a_trace(traced: Traced) -> None:
    traced.play(json_script())
    reply = traced.send({"traceparent": "00-junk"})
    request_id = reply.headers["x-request-id"]
    server, client = traced.collector.spans_with("headrace.request.id", request_id, 2)
    assert server.parent_id == ""
    told = traced.requests()[0].header("traceparent")
    assert told == f"00-{server.trace_id}-{client.span_id}-03"  # sampled, and random


def test_a_second_try_is_a_second_span_and_the_first_says_why_it_ended(traced: Traced) -> None:
    traced.play(BUSY, json_script())
    trace_id, reply = traced.call()
    assert reply.status_code == 200
    server, first, second = traced.collector.spans_of(trace_id, 3)
    assert (first.parent_id, second.parent_id) == (server.span_id, server.span_id)
    assert (first.is_error, second.is_error, server.is_error) == (True, False, False)
    assert first.values["error.type"] == "no_capacity"
    assert "gen_ai.usage.input_tokens" not in first.values
    assert second.values["gen_ai.usage.input_tokens"] == 10
    assert first.values["headrace.replica"] != second.values["headrace.replica"]
    assert server.values["headrace.attempts"] == 2
    asked = [one.header("traceparent").split("-")[2] for one in traced.requests()]
    assert asked == [first.span_id, second.span_id]
    assert first.end_s <= second.start_s


def test_a_refused_call_says_which_limit_and_is_no_error_of_ours(traced: Traced) -> None:
    traced.play(json_script())
    trace_id, reply = traced.call(GLOBEX_KEY)
    assert reply.status_code == 429
    (server,) = traced.collector.spans_of(trace_id, 1)
    assert (
        server.values.items()
        >= {
            "http.response.status_code": 429,
            "error.type": "rate_limited",
            "headrace.outcome": "refused",
            "headrace.scope": "tenant",
            "headrace.limit": reply.headers["x-headrace-limit"],
            "headrace.tenant.id": "globex",
        }.items()
    )
    assert not server.is_error
    assert "gen_ai.response.model" not in server.values
    assert traced.requests() == []


def test_what_no_replica_could_serve_is_an_error_of_ours(traced: Traced) -> None:
    traced.play(BROKEN)
    trace_id, reply = traced.call()
    assert reply.status_code == 502
    spans = traced.collector.spans_of(trace_id, 1 + len(traced.requests()))
    assert [span.is_error for span in spans] == [True] * len(spans)
    assert {span.values["error.type"] for span in spans} == {"upstream_error"}
    assert "gen_ai.usage.input_tokens" not in spans[0].values


def test_a_stream_says_when_its_first_token_came(traced: Traced) -> None:
    traced.play(stream_script(["a", "b", "c"], first_s=0.2))
    trace_id, reply = traced.call(stream=True)
    assert payloads(reply.content)[-1] == "[DONE]"
    server, client = traced.collector.spans_of(trace_id, 2)
    assert server.values["gen_ai.request.stream"] is True
    first_s = client.values["gen_ai.response.time_to_first_chunk"]
    assert 0.2 <= first_s <= server.values["headrace.ttft_s"] <= server.end_s - server.start_s
    assert server.values["gen_ai.usage.output_tokens"] == 3


def test_a_hang_up_ends_both_spans_and_blames_no_replica(traced: Traced) -> None:
    traced.play([sse_head(), Send(framed(event(delta(ANSWER)))), Hang()])
    trace_id, headers = new_trace()
    with (
        httpx.Client(timeout=30, trust_env=False) as client,
        client.stream(
            "POST",
            f"{traced.gateway.url}/v1/chat/completions",
            json=body_of(stream=True),
            headers=headers | {"authorization": f"Bearer {ACME_KEY}"},
        ) as response,
    ):
        next(response.iter_raw())
    server, hop = traced.collector.spans_of(trace_id, 2)
    assert (
        server.values.items()
        >= {
            "headrace.outcome": "cancelled",
            "http.response.status_code": 499,
            "error.type": "client_closed",
            "gen_ai.usage.output_tokens": 1,
            "headrace.usage_source": "counted",
        }.items()
    )
    assert not server.is_error
    assert hop.values["error.type"] == "client_closed"
    assert not hop.is_error
    assert hop.end_s <= server.end_s


def test_a_stream_cut_after_output_is_an_error_of_ours(traced: Traced) -> None:
    traced.play([sse_head(), Send(framed(event(delta(ANSWER)))), Close()])
    trace_id, reply = traced.call(stream=True, logprobs=True)  # which is not continued
    assert payloads(reply.content)[-1]["error"]["code"] == "upstream_error"
    server, hop = traced.collector.spans_of(trace_id, 2)
    assert (server.is_error, hop.is_error) == (True, True)
    assert server.values["headrace.outcome"] == "incomplete"
    assert server.values["gen_ai.response.model"] == "alpha-8b"


def test_a_stream_that_goes_on_elsewhere_is_one_call_with_two_tries(traced: Traced) -> None:
    begun = [Send(framed(event(delta("a"))) + framed(event(delta(" b"))))]
    traced.play([sse_head(), *begun, Reset()], stream_script([" c"], usage(12, 1)))
    trace_id, reply = traced.call(stream=True)
    assert text_of(payloads(reply.content)) == "a b c"
    server, lost, second = traced.collector.spans_of(trace_id, 3)
    assert (server.is_error, lost.is_error, second.is_error) == (False, True, False)
    assert lost.values["error.type"] == "upstream_error"
    assert "gen_ai.response.time_to_first_chunk" in lost.values
    assert "gen_ai.response.time_to_first_chunk" not in second.values
    assert server.values["gen_ai.usage.output_tokens"] == 3
    assert second.values["gen_ai.usage.output_tokens"] == 3
    assert lost.end_s <= second.start_s


def test_the_callers_sampled_flag_is_honoured_and_passed_on(traced: Traced) -> None:
    traced.play(json_script())
    unkept, headers = new_trace("00")
    assert traced.send(headers).status_code == 200
    assert re.fullmatch(
        rf"00-{unkept}-[0-9a-f]{{16}}-00", traced.requests()[0].header("traceparent")
    )
    trace_id, _ = traced.call()
    traced.collector.spans_of(trace_id, 2)  # queued after it
    traced.collector.spans_of(unkept, 0)


def test_other_operations_have_the_conventions_names(traced: Traced) -> None:
    traced.play(json_script({"object": "list", "data": [], "usage": usage(3, 0)}))
    trace_id, headers = new_trace()
    with httpx.Client(timeout=30, trust_env=False) as client:
        reply = client.post(
            f"{traced.gateway.url}/v1/embeddings",
            json={"model": "alpha-8b", "input": "hi"},
            headers=headers | {"authorization": f"Bearer {ACME_KEY}"},
        )
    assert reply.status_code == 200, reply.text
    server, client_span = traced.collector.spans_of(trace_id, 2)
    assert client_span.name == "embeddings alpha-8b"
    assert server.values["gen_ai.operation.name"] == "embeddings"
    assert server.values["gen_ai.usage.output_tokens"] == 0


def test_nothing_secret_leaves_by_any_span(traced: Traced) -> None:
    message = [{"role": "user", "content": PROMPT}]
    kinds: list[tuple[Script, dict[str, Any]]] = [
        (json_script(answer(ANSWER)), {}),
        (stream_script([ANSWER]), {"stream": True}),
        (BUSY, {}),
        (BROKEN, {}),
        (json_script({"error": {"message": WORDS, "code": 400}}, 400), {}),
        (json_script(), {"model": PROMPT}),
        (json_script(), {"max_tokens": PROMPT}),
    ]
    for script, body in kinds:
        traced.play(script)
        trace_id, headers = new_trace()
        headers |= {"tracestate": f"x={PROMPT}", "cookie": PROMPT, "user-agent": PROMPT}
        reply = traced.send(headers, messages=message, **body)
        assert reply.status_code != 401
        asked = traced.requests()
        traced.collector.spans_of(trace_id, 1 + len(asked))
        assert all(one.header("tracestate") is None for one in asked)
    wrong_id, reply = traced.call("hr_wrong-key-" + WORDS)
    assert reply.status_code == 401
    everything = b"".join(traced.collector.raw)
    assert b"acme" in everything
    ports = [f":{upstream.port}" for upstream in traced.upstreams]
    for secret in (PROMPT, ANSWER, WORDS, ACME_KEY, ACME_KEY[8:], "salt-acme", "127.0.0.1", *ports):
        assert secret.encode() not in everything, secret
    assert all(not span.message for span in traced.collector.spans)
    traced.collector.spans_of(wrong_id, 0)  # whoever has no key makes no spans


def test_counts_tell_what_became_of_spans(traced: Traced) -> None:
    wait_until(lambda: spans_in(traced.gateway, "exported") == len(traced.collector.spans), 5)
    assert spans_in(traced.gateway, "dropped") == 0
    assert traced.collector.headers[0]["content-type"] == "application/x-protobuf"
