"""The engine over real HTTP, asked by the official client and by plain sockets."""

import json
import signal
import socket
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.engines import MODEL, EngineProcess, engine, wait_for

LONG = "The quick brown fox jumps over the lazy dog again. " * 8
FAST = ("--time-scale", "20")


@pytest.fixture(scope="module")
def fast() -> Iterator[EngineProcess]:
    with engine(*FAST, "--scheduling-policy", "priority") as running:
        yield running


def client(running: EngineProcess) -> openai.OpenAI:
    return openai.OpenAI(base_url=running.url + "/v1", api_key="none", max_retries=0)


def messages(text: str) -> list[Any]:
    return [{"role": "user", "content": text}]


def test_stream_and_whole_answer_hold_the_same_text_and_usage(fast: EngineProcess) -> None:
    ask: dict[str, Any] = {"model": MODEL, "messages": messages("same"), "max_tokens": 40}
    whole = client(fast).chat.completions.create(**ask, seed=3)
    chunks = list(
        client(fast).chat.completions.create(
            **ask, seed=3, stream=True, stream_options={"include_usage": True}
        )
    )
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == whole.choices[0].message.content
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert whole.usage is not None
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens <= 40
    assert chunks[-2].choices[0].finish_reason == whole.choices[0].finish_reason
    other = client(fast).chat.completions.create(**ask, seed=4)
    assert other.choices[0].message.content != text


def test_stream_without_the_option_has_no_usage(fast: EngineProcess) -> None:
    chunks = client(fast).completions.create(model=MODEL, prompt="x", stream=True, max_tokens=3)
    assert all(chunk.usage is None for chunk in chunks)


def test_second_call_reports_cached_tokens_and_salt_isolates(fast: EngineProcess) -> None:
    text = "cached " + LONG
    first = fast.chat(text, max_tokens=1)["usage"]
    second = fast.chat(text, max_tokens=1)["usage"]
    salted = fast.chat(text, max_tokens=1, cache_salt="tenant-2")["usage"]
    assert first["prompt_tokens_details"]["cached_tokens"] == 0
    prompt = second["prompt_tokens"]
    assert second["prompt_tokens_details"]["cached_tokens"] == (prompt - 1) // 16 * 16
    assert salted["prompt_tokens_details"]["cached_tokens"] == 0
    assert isinstance(first["prompt_tokens_details"]["created_cache_tokens"], int)


def test_second_turn_hits_the_answer_of_the_first(fast: EngineProcess) -> None:
    ask = messages("turn one " + LONG)
    first = client(fast).chat.completions.create(
        model=MODEL, messages=ask, max_tokens=64, extra_body={"ignore_eos": True}
    )
    answer = first.choices[0].message.content
    second = client(fast).chat.completions.create(
        model=MODEL,
        messages=[*ask, {"role": "assistant", "content": answer}, *messages("and now?")],
        max_tokens=1,
    )
    assert first.usage is not None
    assert second.usage is not None
    assert second.usage.prompt_tokens_details is not None
    cached = second.usage.prompt_tokens_details.cached_tokens or 0
    assert cached >= first.usage.prompt_tokens + 64 - 16


def test_choices_share_one_prompt(fast: EngineProcess) -> None:
    answer = client(fast).chat.completions.create(
        model=MODEL, messages=messages("n"), n=3, max_tokens=5, extra_body={"ignore_eos": True}
    )
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    assert len({choice.message.content for choice in answer.choices}) == 3
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 15


def test_request_id_is_echoed_and_names_the_answer(fast: EngineProcess) -> None:
    body = {"model": MODEL, "prompt": "x", "max_tokens": 1}
    _status, answer, headers = fast.post("/v1/completions", body, X_Request_Id="abc-1")
    assert headers["x-request-id"] == "abc-1"
    assert answer["id"] == "cmpl-abc-1"
    _status, answer, headers = fast.post("/v1/completions", body)
    assert answer["id"] == "cmpl-" + headers["x-request-id"]


def test_errors_have_vllms_shape(fast: EngineProcess) -> None:
    with pytest.raises(openai.NotFoundError) as missing:
        client(fast).chat.completions.create(model="other", messages=messages("x"))
    assert missing.value.body["code"] == 404  # type: ignore[index]
    with pytest.raises(openai.BadRequestError) as long:
        client(fast).completions.create(model=MODEL, prompt="x", max_tokens=100_000)
    assert long.value.body["type"] == "BadRequestError"  # type: ignore[index]
    request = urllib.request.Request(fast.url + "/v1/completions", b"{nonsense")
    with pytest.raises(urllib.error.HTTPError) as bad:
        urllib.request.urlopen(request)
    assert bad.value.code == 400
    assert set(json.load(bad.value)["error"]) == {"message", "type", "param", "code"}
    assert fast.get("/v1/completions")[0] == 405
    assert fast.get("/nowhere")[0] == 404


def test_small_endpoints(fast: EngineProcess) -> None:
    assert fast.get("/health") == (200, b"")
    assert fast.get("/ping")[0] == 200
    assert json.loads(fast.get("/version")[1]) == {"version": "0.32.0"}
    assert json.loads(fast.get("/load")[1]) == {"server_load": 0}
    models = client(fast).models.list().data
    assert [model.id for model in models] == [MODEL]
    _status, counted, _headers = fast.post("/tokenize", {"model": MODEL, "prompt": "hello world"})
    assert (counted["count"], len(counted["tokens"])) == (3, 3)


def test_metrics_agree_with_what_was_asked() -> None:
    with engine(*FAST) as running:
        usages = [running.chat(f"{n} {LONG}", max_tokens=20)["usage"] for n in range(3)]
        usages.append(running.chat(f"2 {LONG}", max_tokens=20)["usage"])
        found = running.metrics()
        prompt = sum(usage["prompt_tokens"] for usage in usages)
        made = sum(usage["completion_tokens"] for usage in usages)
        cached = usages[-1]["prompt_tokens_details"]["cached_tokens"]
        assert cached > 0
        assert found["vllm:prompt_tokens_total"] == prompt
        assert found["vllm:generation_tokens_total"] == made
        assert found["vllm:prefix_cache_queries_total"] == prompt
        assert found["vllm:prefix_cache_hits_total"] == cached
        assert found["vllm:time_to_first_token_seconds_count"] == 4
        assert found["vllm:inter_token_latency_seconds_count"] == made - 4
        assert found["vllm:e2e_request_latency_seconds_count"] == 4
        assert found["vllm:iteration_tokens_total_sum"] == prompt - cached + made
        assert found["vllm:num_requests_running"] == 0
        assert found["vllm:kv_cache_usage_perc"] == 0
        ttft, e2e = (
            found[f"vllm:{name}_seconds_sum"]
            for name in ("time_to_first_token", "e2e_request_latency")
        )
        gaps = found["vllm:inter_token_latency_seconds_sum"]
        assert ttft + gaps == pytest.approx(e2e, rel=0.01)


def test_older_names_by_the_switch() -> None:
    with engine("--metric-names", "old") as running:
        text = running.get("/metrics")[1].decode()
        names = {family.name for family in text_string_to_metric_families(text)}
        assert "vllm:gpu_cache_usage_perc" in names
        assert "vllm:time_per_output_token_seconds" in names
        assert not names & {"vllm:kv_cache_usage_perc", "vllm:inter_token_latency_seconds"}


def open_stream(running: EngineProcess, text: str, tokens: int, **fields: Any) -> socket.socket:
    """A stream whose first token has arrived."""
    body = json.dumps(
        {
            "model": MODEL,
            "messages": messages(text),
            "stream": True,
            "max_tokens": tokens,
            "ignore_eos": True,
            **fields,
        }
    ).encode()
    connection = socket.create_connection(("127.0.0.1", running.port), timeout=20)
    connection.sendall(
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body)
        + body
    )
    seen = b""
    while b'"content":"' not in seen.replace(b'"content":""', b""):
        part = connection.recv(65536)
        assert part, seen
        seen += part
    return connection


def rest_of(connection: socket.socket) -> bytes:
    seen = b""
    with connection:
        while part := connection.recv(65536):
            seen += part
            if seen.endswith(b"0\r\n\r\n"):
                break
    return seen


def test_client_that_leaves_frees_its_blocks() -> None:
    with engine() as running:
        connection = open_stream(running, LONG, 5000)
        assert running.metrics()["vllm:num_requests_running"] == 1
        assert running.metrics()["vllm:kv_cache_usage_perc"] > 0
        connection.close()
        wait_for(lambda: running.metrics()["vllm:num_requests_running"] == 0, 5)
        found = running.metrics()
        assert found["vllm:kv_cache_usage_perc"] == 0
        assert found["vllm:generation_tokens_total"] < 1000
        assert json.loads(running.get("/load")[1])["server_load"] == 0


def test_full_queue_is_refused_with_503() -> None:
    with engine("--max-num-queued-reqs", "2") as running:
        streams = [open_stream(running, f"{n}", 2000) for n in range(2)]
        status, answer, headers = running.post(
            "/v1/completions", {"model": MODEL, "prompt": "x", "max_tokens": 1}
        )
        assert status == 503
        assert answer["error"]["code"] == 503
        assert "retry-after" not in {name.lower() for name in headers}
        text = running.get("/metrics")[1].decode()
        assert (
            f'admission_rejections_total{{model_name="{MODEL}",reason="max_num_queued_reqs"}} 1.0'
            in text
        )
        for stream in streams:
            stream.close()


def test_small_cache_preempts_and_everything_still_completes() -> None:
    with engine("--kv-blocks", "24", "--time-scale", "50") as running:
        answers: list[dict[str, Any]] = []
        threads = [
            threading.Thread(
                target=lambda n=n: answers.append(
                    running.chat(f"{n} " + "x" * 300, max_tokens=120, ignore_eos=True)
                )
            )
            for n in range(6)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert [answer["usage"]["completion_tokens"] for answer in answers] == [120] * 6
        found = running.metrics()
        assert found["vllm:num_preemptions_total"] > 0
        assert found["vllm:kv_cache_usage_perc"] == 0


def test_sigterm_cuts_live_streams_with_an_error_event() -> None:
    with engine() as running:
        connection = open_stream(running, "cut me", 5000)
        running.process.send_signal(signal.SIGTERM)
        rest = rest_of(connection).decode()
        assert '"code":500' in rest
        assert "EngineCore encountered an issue" in rest
        assert "data: [DONE]" in rest
        assert running.process.wait(10) == 0


def test_shutdown_timeout_drains_while_new_calls_get_500_and_health_200() -> None:
    with engine("--shutdown-timeout", "20") as running:
        connection = open_stream(running, "finish me", 60)
        running.process.send_signal(signal.SIGTERM)
        body = {"model": MODEL, "prompt": "late", "max_tokens": 1}
        _status, answer, _headers = wait_for(
            lambda: (got := running.post("/v1/completions", body))[0] == 500 and got
        )
        assert "cannot schedule new futures after shutdown" in answer["error"]["message"]
        assert running.get("/health")[0] == 200
        rest = rest_of(connection).decode()
        assert '"finish_reason":"length"' in rest
        assert '"error"' not in rest
        assert running.process.wait(10) == 0


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("faults") / "faults.json"


@pytest.fixture(scope="module")
def faulty(script: Path) -> Iterator[EngineProcess]:
    with engine("--faults", str(script)) as running:
        yield running


class TestFaults:
    """Each scripted fault, switched on and off in a running engine."""

    def status(self, running: EngineProcess) -> int:
        return running.post("/v1/completions", {"model": MODEL, "prompt": "x", "max_tokens": 1})[0]

    def test_refuse(self, faulty: EngineProcess, script: Path) -> None:
        script.write_text('{"refuse_status": 429}')
        wait_for(lambda: self.status(faulty) == 429, 5, 0.1)
        script.write_text("{}")
        wait_for(lambda: self.status(faulty) == 200, 5, 0.1)

    def test_hang(self, faulty: EngineProcess, script: Path) -> None:
        script.write_text('{"hang_completions": true}')

        def hangs() -> bool:
            try:
                self.post_briefly(faulty)
            except TimeoutError:
                return True
            return False

        wait_for(hangs, 8)
        assert faulty.get("/health")[0] == 200
        script.unlink()
        wait_for(lambda: not hangs(), 8)

    def post_briefly(self, running: EngineProcess) -> None:
        running.post("/v1/completions", {"model": MODEL, "prompt": "x", "max_tokens": 1}, 0.7)

    def test_frozen_and_silent_metrics(self, faulty: EngineProcess, script: Path) -> None:
        script.write_text('{"metrics": "frozen"}')
        wait_for(
            lambda: (
                faulty.metrics()["process_cpu_seconds_total"]
                == faulty.metrics()["process_cpu_seconds_total"]
            ),
            5,
            0.1,
        )
        before = faulty.metrics()["vllm:generation_tokens_total"]
        assert self.status(faulty) == 200
        assert faulty.metrics()["vllm:generation_tokens_total"] == before
        script.write_text('{"metrics": "timeout"}')

        def is_silent() -> bool:
            try:
                faulty.get("/metrics", timeout_s=0.7)
            except TimeoutError:
                return True
            return False

        wait_for(is_silent, 8)
        script.write_text("{}")
        wait_for(lambda: not is_silent(), 8)
        assert faulty.metrics()["vllm:generation_tokens_total"] > before

    def test_reset_at_token(self, faulty: EngineProcess, script: Path) -> None:
        script.write_text('{"reset_at_token": 3}')

        def is_reset() -> bool:
            try:
                rest = rest_of(open_stream(faulty, "reset", 30))
            except ConnectionResetError:
                return True
            return b"[DONE]" not in rest

        wait_for(is_reset, 10)
        wait_for(lambda: faulty.metrics()["vllm:num_requests_running"] == 0, 5)
        script.write_text("{}")
        wait_for(lambda: not is_reset(), 10)

    def test_bad_script_is_ignored(self, faulty: EngineProcess, script: Path) -> None:
        script.write_text('{"refuse_status": 429}')
        wait_for(lambda: self.status(faulty) == 429, 5, 0.1)
        script.write_text('{"unknown": ')
        assert self.status(faulty) == 429
