"""The official npm client of OpenAI against the gateway: what it parses, retries and gives up on.

One node process for the module runs `npm/client.mjs`; each command makes a client of its own.
"""

import hashlib
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT
from tests.contract.conftest import Served
from tests.stack import ACME_KEY, ALPHA, GLOBEX_KEY, shape_rows, wait_until
from tests.upstream import (
    LAST,
    Hang,
    Reset,
    Send,
    answer,
    chunk,
    delta,
    event,
    framed,
    json_script,
    sse_head,
    stream_events,
    usage,
)

HERE = Path(__file__).resolve().parent / "npm"
CACHE = ROOT / "test-artifacts" / "npm"
INSTALL_S = 120
PINNED = ("package.json", "package-lock.json")


def installed() -> Path:
    """A folder with the pinned packages, made once for each lock file."""
    npm = shutil.which("npm")
    if npm is None or shutil.which("node") is None:
        pytest.skip("NOT RUN, no node and npm: install Node.js 20 or newer")
    pins = b"".join((HERE / name).read_bytes() for name in PINNED)
    folder = CACHE / hashlib.sha256(pins).hexdigest()[:16]
    if not folder.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        fresh = Path(tempfile.mkdtemp(dir=CACHE))
        for name in PINNED:
            shutil.copy(HERE / name, fresh)
        words = [npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund"]
        done = subprocess.run(
            words, cwd=fresh, capture_output=True, text=True, timeout=INSTALL_S, check=False
        )
        assert done.returncode == 0, f"npm ci: {done.stderr}"
        fresh.rename(folder)
    return folder


@dataclass
class Npm:
    """Commands for the node process; their answers."""

    process: "subprocess.Popen[str]"

    def __call__(self, does: str, key: str = ACME_KEY, **words: Any) -> Any:
        """What the client returned; its error is raised as AssertionError."""
        found = self.ask(does, key, **words)
        assert "error" not in found, found["error"]
        return found["is"]

    def error(self, does: str, key: str = ACME_KEY, **words: Any) -> dict[str, Any]:
        """The error that the client threw."""
        found = self.ask(does, key, **words)
        assert "error" in found, found["is"]
        return dict(found["error"])

    def ask(self, does: str, key: str, **words: Any) -> dict[str, Any]:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(json.dumps({"does": does, "key": key, **words}) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        assert line, "node ended; what it said is above"
        return dict(json.loads(line))


@pytest.fixture(scope="module")
def npm(served: Served) -> Iterator[Npm]:
    folder = installed()
    shutil.copy(HERE / "client.mjs", folder)
    # No proxy of this machine between two processes of it.
    env = {"PATH": os.environ["PATH"], "NO_PROXY": "127.0.0.1"}
    with subprocess.Popen(
        ["node", "client.mjs", f"{served.gateway.url}/v1"],
        cwd=folder,
        env=env,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        yield Npm(process)


def test_a_whole_answer_its_usage_id_and_cost(served: Served, npm: Npm) -> None:
    found = npm("chat", model="alpha-8b")
    assert found["text"]
    assert found["same_id"]
    row = served.row(found["request_id"])
    told = found["usage"]
    assert (row.input_tokens, row.output_tokens) == (
        told["prompt_tokens"],
        told["completion_tokens"],
    )
    assert found["cost_usd"] == f"{row.spend_nanousd / 1e9:.9f}"


def test_a_stream_with_its_usage_only_if_asked(served: Served, npm: Npm) -> None:
    asked = npm("stream", model="alpha-8b", stream_options={"include_usage": True}, max_tokens=9)
    assert asked["text"]
    assert asked["last"]["choices"] == []
    assert asked["usage"]["completion_tokens"] <= 9
    plain = npm("stream", model="alpha-8b", max_tokens=9)
    assert plain["usage"] is None
    assert plain["last"]["choices"]


def test_the_streaming_helper_of_chat(npm: Npm) -> None:
    found = npm("helper", model="alpha-8b")
    assert len(found["pieces"]) > 1
    assert "".join(found["pieces"]) == found["text"]
    assert found["finish"] in ("stop", "length")


def test_the_tool_runner_calls_and_goes_on(served: Served, npm: Npm) -> None:
    def piece(**function: str) -> bytes:
        call = {"index": 0, "function": function}
        if "name" in function:
            call |= {"id": "c1", "type": "function"}
        return event(delta(tool_calls=[call]))

    calling = [
        event(delta(role="assistant", content=None)),
        piece(name="weather", arguments=""),
        piece(arguments='{"ci'),
        piece(arguments='ty":"Bern"}'),
        event(delta(finish="tool_calls")),
        event(chunk([], usage=usage(9, 4))),
        event("[DONE]"),
    ]
    scripts = [
        [sse_head(), *(Send(framed(one)) for one in events), Send(LAST)]
        for events in (calling, stream_events(["Take", " a coat"], usage(20, 2)))
    ]
    before = len(served.upstream.completions)
    served.upstream.plan(*scripts)
    found = npm("tools", model="scripted")
    assert found == {"text": "Take a coat", "asked": ["Bern"]}
    first, second = served.upstream.completions[before:]
    assert first.json["tools"][0]["function"]["name"] == "weather"
    last = second.json["messages"][-1]
    assert (last["role"], last["tool_call_id"], last["content"]) == ("tool", "c1", "Bern: rain")


def test_a_structured_answer(served: Served, npm: Npm) -> None:
    served.upstream.plan(json_script(answer('{"city": "Bern"}')))
    assert npm("structured", model="scripted") == {"city": "Bern"}
    sent = served.upstream.completions[-1].json["response_format"]
    assert sent["type"] == "json_schema"
    assert sent["json_schema"]["schema"]["required"] == ["city"]


def test_embeddings_as_the_client_decodes_them(served: Served, npm: Npm) -> None:
    """The client asks for base64 unless told otherwise; both must be the same numbers."""
    coded = npm("embeddings", model="alpha-8b", input=["one", "two two"])
    plain = npm("embeddings", model="alpha-8b", input=["one", "two two"], encoding_format="float")
    assert len(coded["vectors"]) == 2
    for one, other in zip(coded["vectors"], plain["vectors"], strict=True):
        assert len(one) > 0
        assert one == pytest.approx(other, rel=1e-6)
    row = served.row(coded["request_id"])
    assert row.operation == "embeddings"
    assert row.input_tokens == coded["usage"]["prompt_tokens"]


def test_responses_whole_and_streamed(served: Served, npm: Npm) -> None:
    found = npm("responses", model="alpha-8b")
    assert found["text"]
    row = served.row(found["request_id"])
    told = found["usage"]
    assert row.operation == "responses"
    assert (row.input_tokens, row.output_tokens) == (told["input_tokens"], told["output_tokens"])
    cost = row.input_tokens - row.cached_tokens, row.cached_tokens, row.output_tokens
    prices = ALPHA.input_nanousd, ALPHA.cached_nanousd, ALPHA.output_nanousd
    assert row.spend_nanousd == sum(n * p for n, p in zip(cost, prices, strict=True)) // 10**6
    streamed = npm("responses_stream", model="alpha-8b")
    assert streamed["text"] == streamed["whole"] != ""
    assert streamed["usage"]["output_tokens"] > 0


def test_the_models_of_the_key(npm: Npm) -> None:
    assert npm("models") == ["alpha-8b", "free-3b", "scripted"]


@pytest.mark.parametrize(
    ("words", "name", "status", "code"),
    [
        ({"key": "sk-wrong", "model": "alpha-8b"}, "AuthenticationError", 401, "unauthorized"),
        ({"model": "nope"}, "NotFoundError", 404, "not_found"),
        ({"model": "alpha-8b", "n": 99}, "BadRequestError", 400, "invalid_request"),
    ],
)
def test_refusals_are_the_clients_own_errors(
    npm: Npm, words: dict[str, Any], name: str, status: int, code: str
) -> None:
    does = "stream" if "n" in words else "chat"
    found = npm.error(does, retries=2, **words)
    assert (found["class"], found["status"], found["code"]) == (name, status, code)
    assert found["should_retry"] == "false"
    assert found["request_id"]


def test_an_upstreams_failure_is_an_internal_server_error(served: Served, npm: Npm) -> None:
    served.upstream.plan(json_script({"error": {"message": "boom"}}, 500))
    found = npm.error("chat", model="scripted")
    assert (found["class"], found["status"]) == ("InternalServerError", 502)
    assert (found["code"], found["type"]) == ("upstream_error", "api_error")
    assert found["should_retry"] == "true"


def test_an_error_in_a_stream_is_thrown_from_its_loop(served: Served, npm: Npm) -> None:
    served.upstream.plan([sse_head(), Send(framed(event(delta("par")))), Reset()])
    found = npm.error("stream", model="scripted")
    assert found["is_api"]
    assert found["code"] == "upstream_error"
    assert "after 1 output token" in found["message"]


def test_it_comes_back_after_the_hint(served: Served, npm: Npm) -> None:
    before = len(served.upstream.completions)
    busy = json_script({"error": {"message": "busy"}}, 429, [("retry-after-ms", "900")])
    served.upstream.plan(busy, json_script(answer("yo", usage(3, 1))))
    assert npm("chat", model="scripted", retries=2)["text"] == "yo"
    first, second = served.upstream.completions[before:]
    # Below the half second of the client's own rule: the hint was read.
    assert second.arrived_at - first.arrived_at > 0.05


def test_a_spent_budget_is_not_tried_again(served: Served, npm: Npm) -> None:
    """A client retries each 429, unless it is told that it is no use."""

    def refused() -> int:
        return sum(row.tenant_id == "globex" for row in shape_rows(served.store))

    before = refused()
    found = npm.error("chat", GLOBEX_KEY, model="alpha-8b", retries=3)
    assert (found["class"], found["code"]) == ("RateLimitError", "budget_exceeded")
    assert (found["should_retry"], found["limit"]) == ("false", "spend_per_day")
    npm.error("chat", GLOBEX_KEY, model="alpha-8b", retries=0)
    wait_until(lambda: refused() - before >= 2, 5, "both calls on record")
    assert refused() - before == 2


def test_a_stream_that_is_aborted_stops_the_engine(served: Served, npm: Npm) -> None:
    pieces = [Send(framed(event(delta(text)))) for text in ("a", "b")]
    served.upstream.plan([sse_head(), *pieces, Hang()])
    assert npm("abort", model="scripted") == {"pieces": 2}
    seen = served.upstream.completions[-1]
    wait_until(lambda: seen.closed_at is not None, 5, "the engine's connection closed")
    request_id = seen.header("x-request-id")
    row = served.row(request_id)
    assert (row.status, row.output_tokens, row.usage_source) == ("cancelled", 2, "counted")
