"""Agents' calls at real gateways: caps by kind, what a stopped one is told, what costs nothing."""

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from routing.contracts.enums import RequestStatus
from routing.contracts.snapshot import FailurePolicy, Price, TaskCaps
from tests.gatewaying import ACME, body_of, payloads, row, rows, serving
from tests.stack import (
    ACME_KEY,
    GLOBEX_KEY,
    GatewayProcess,
    held,
    open_buckets,
    policy,
    shape_rows,
    usage_events,
    wait_until,
)
from tests.upstream import (
    Hang,
    Send,
    UpstreamThread,
    delta,
    event,
    framed,
    json_script,
    sse_head,
)

Store = "redis.Redis[bytes]"
UNIT = 2_000_000  # 0.002 USD
KINDS = {
    "default": TaskCaps(max_steps=6, max_repeats=3),
    "tools": TaskCaps(max_spend_nanousd=5 * UNIT),
}


@pytest.fixture
def two(store: Store, tmp_path: Path) -> Iterator[list[GatewayProcess]]:
    with UpstreamThread(json_script()) as upstream, ExitStack() as opened:
        yield [
            opened.enter_context(
                serving(
                    tmp_path / name,
                    upstream,
                    env={"HEADRACE_GATEWAY_ID": name},
                    policy=policy(workflows=KINDS),
                    resources={"search": (Price(7, 0, 0, 0, unit_nanousd=UNIT),)},
                )
            )
            for name in ("g0", "g1")
        ]


def post(
    gateway: GatewayProcess,
    task: str = "t-1",
    kind: str = "",
    *,
    secret: str = ACME_KEY,
    path: str = "/v1/chat/completions",
    key: str = "",
    body: dict[str, Any] | None = None,
    **fields: Any,
) -> httpx.Response:
    headers = {"authorization": f"Bearer {secret}", "x-headrace-task-id": task}
    headers |= {"x-headrace-task-kind": kind} if kind else {}
    headers |= {"idempotency-key": key} if key else {}
    with httpx.Client(timeout=30, trust_env=False) as client:
        sent = body_of(**fields) if body is None else body
        return client.post(f"{gateway.url}{path}", json=sent, headers=headers)


def saying(number: int) -> list[dict[str, str]]:
    return [{"role": "user", "content": f"question {number}"}]


def error_of(response: httpx.Response) -> dict[str, Any]:
    return response.json()["error"]


def test_two_processes_admit_exactly_the_steps_and_print_the_chain(
    store: Store, two: list[GatewayProcess]
):
    with ThreadPoolExecutor(12) as pool:
        calls = [pool.submit(post, two[n % 2], messages=saying(n)) for n in range(24)]
        answers = [call.result() for call in calls]
    assert sorted(a.status_code for a in answers) == [200] * 6 + [429] * 18
    refused = [a for a in answers if a.status_code == 429]
    assert {error_of(a)["code"] for a in refused} == {"task_steps_exceeded"}
    assert {a.headers["x-should-retry"] for a in refused} == {"false"}
    assert {a.headers["x-headrace-limit"] for a in refused} == {"task_steps"}
    told = error_of(post(two[0], messages=saying(99)))
    served = {a.headers["x-request-id"] for a in answers if a.status_code == 200}
    assert {step["request_id"] for step in told["task"]["chain"]} == served
    assert (told["task"]["steps"], told["task"]["used"]) == (6, "6 of 6 steps")
    assert "#6 alpha-8b" in told["message"]
    assert len(rows(store, 6)) == 6
    spent = {f"{e.spend_nanousd / 1e9:.9f}" for _, e in usage_events(store, ACME)}
    wait_until(lambda: held(store, ACME) == 0, 5, "nothing held")
    chain = error_of(post(two[1], messages=saying(99)))["task"]["chain"]
    assert {step["spend_usd"] for step in chain} == spent
    shapes = wait_until(
        lambda: [s for s in shape_rows(store) if s.refused_code == "task_steps_exceeded"], 5
    )
    assert {(s.task_id, s.refused_limit, s.refused_scope) for s in shapes} == {
        ("t-1", "task_steps", "task")
    }


def test_a_task_is_its_tenants_own(two: list[GatewayProcess], store: Store):
    open_buckets(store, [bucket for bucket in range(256) if bucket != ACME])
    for number in range(6):
        assert post(two[0], messages=saying(number)).status_code == 200
    other = post(two[0], secret=GLOBEX_KEY, messages=saying(1))
    assert other.status_code == 200, other.text
    assert error_of(post(two[0], messages=saying(7)))["task"]["steps"] == 6
    assert post(two[0], "t-2", messages=saying(7)).status_code == 200


def test_a_tools_spend_is_the_tasks(two: list[GatewayProcess]):
    path = "/v1/resources/search/reserve"
    for gateway in two:
        reserved = post(gateway, "t-1", "tools", path=path, body={"units": 2, "ttl_s": 60})
        assert reserved.status_code == 200, reserved.text
    over = post(two[0], "t-1", "tools", path=path, body={"units": 2, "ttl_s": 60})
    assert (over.status_code, error_of(over)["code"]) == (429, "task_spend_exceeded")
    assert error_of(over)["task"]["chain"][0]["model"] == "resource:search"
    call = post(two[1], "t-1", "tools", max_tokens=4000)
    assert error_of(call)["code"] == "task_spend_exceeded", call.text
    assert "$0.008 held" in error_of(call)["message"]
    one = post(two[1], "t-1", "tools", path=path, body={"units": 1, "ttl_s": 60})
    assert one.status_code == 200


def test_tool_calls_that_differ_only_in_their_ids_are_one_loop(two: list[GatewayProcess]):
    def asked(turn: int, found: str = "nothing") -> httpx.Response:
        messages: list[dict[str, Any]] = [{"role": "user", "content": "find it"}]
        for number in range(turn):
            call = {"id": f"call-{number}", "type": "function"}
            call["function"] = {"name": "search", "arguments": '{"q": "it"}'}  # type: ignore[assignment]
            messages += [
                {"role": "assistant", "content": None, "tool_calls": [call]},
                {"role": "tool", "tool_call_id": f"call-{number}", "content": found},
            ]
        return post(two[turn % 2], messages=messages)

    assert [asked(turn).status_code for turn in (1, 2, 3)] == [200, 200, 200]
    looping = asked(4)
    assert (looping.status_code, error_of(looping)["code"]) == (429, "task_loop")
    assert asked(5, found="something").status_code == 200


def test_a_call_that_was_answered_is_answered_again_whatever_its_task_has_used(
    two: list[GatewayProcess],
):
    first = post(two[0], key="k-1")
    assert first.status_code == 200
    for number in range(5):
        assert post(two[0], messages=saying(number), key=f"n-{number}").status_code == 200
    assert error_of(post(two[0], messages=saying(9), key="k-9"))["code"] == "task_steps_exceeded"
    again = post(two[1], key="k-1")
    assert (again.status_code, again.content) == (200, first.content)
    for _ in range(3):
        assert post(two[0], "t-2", messages=saying(1)).status_code == 200
    kept = post(two[0], "t-3", key="k-3")
    for _ in range(2):
        assert post(two[0], "t-3").status_code == 200
    assert error_of(post(two[0], "t-3"))["code"] == "task_loop"
    assert error_of(post(two[0], "t-3", key="k-4"))["code"] == "task_loop"
    assert post(two[1], "t-3", key="k-3").content == kept.content


def test_the_official_client_raises_and_does_not_try_again(two: list[GatewayProcess]):
    headers = {"x-headrace-task-id": "t-sdk"}
    with (
        httpx.Client(trust_env=False) as http,
        openai.OpenAI(
            base_url=f"{two[0].url}/v1", api_key=ACME_KEY, default_headers=headers,
            max_retries=5, http_client=http,
        ) as client,
    ):  # fmt: skip
        sent: list[httpx.Request] = []
        http.event_hooks = {"request": [sent.append]}
        messages: Any = [{"role": "user", "content": "hi"}]
        for _ in range(3):
            client.chat.completions.create(model="alpha-8b", messages=messages)
        before = len(sent)
        with pytest.raises(openai.RateLimitError) as raised:
            client.chat.completions.create(model="alpha-8b", messages=messages)
        assert len(sent) == before + 1
    assert raised.value.code == "task_loop"
    body: Any = raised.value.body
    assert [step["number"] for step in body["task"]["chain"]] == [1, 2, 3]
    assert json.dumps(messages)[:20] not in raised.value.message


@pytest.mark.parametrize("is_stream", [True, False], ids=["stream", "whole answer"])
def test_a_running_call_ends_with_its_tasks_time(store: Store, tmp_path: Path, is_stream: bool):
    """Well before any deadline of its class: typed, charged, and the engine's work is stopped."""
    kinds = {"brief": TaskCaps(max_wall_s=2)}
    script = [sse_head(), *[Send(framed(event(delta("on")))) for _ in range(3)], Hang()]
    with (
        UpstreamThread(script if is_stream else [Hang()]) as upstream,
        serving(tmp_path, upstream, policy=policy(workflows=kinds)) as gateway,
    ):
        began = time.monotonic()
        got = post(gateway, "t-cut", "brief", max_tokens=100, stream=is_stream)
        took_s = time.monotonic() - began
        if is_stream:
            assert got.status_code == 200
            error = payloads(got.content)[-1]["error"]
            assert b"[DONE]" not in got.content
            assert "ended after 3 output tokens" in error["message"]
        else:
            assert got.status_code == 429
            assert got.headers["x-should-retry"] == "false"
            assert got.headers["x-headrace-limit"] == "task_wall"
            assert got.headers["x-headrace-scope"] == "task"
            error = error_of(got)
        assert error["code"] == "task_time_exceeded"
        assert (error["task"]["task_id"], error["task"]["used"]) == ("t-cut", "2 of 2 s")
        assert 1.9 < took_s < 6, "class limits are 30 s and more"
        wait_until(lambda: upstream.completions[0].closed_at, 2, "the engine's work is stopped")
        found = row(store)
        status = RequestStatus.INCOMPLETE if is_stream else RequestStatus.FAILED
        assert (found.status, found.error_code) == (status, "task_time_exceeded")
        assert found.output_tokens == (3 if is_stream else 0)
        assert 0 < found.spend_nanousd <= found.held_nanousd
        assert not found.has_failed, "no fault of ours"
        (shape,) = wait_until(lambda: shape_rows(store), 5)
        assert (shape.refused_limit, shape.refused_scope) == ("task_wall", "task")
        again = post(gateway, "t-cut", "brief")
        assert error_of(again)["code"] == "task_time_exceeded"
        assert len(upstream.completions) == 1


def test_no_try_is_waited_for_past_the_tasks_time(store: Store, tmp_path: Path):
    """Up to 25 s between tries, and 2 s of the task left: refused at once, and nothing charged."""
    kinds = {"brief": TaskCaps(max_wall_s=2)}
    slow = FailurePolicy(backoff_base_s=25.0, backoff_max_s=25.0)
    busy = json_script({"error": {"message": "currently busy"}}, 503)
    with (
        UpstreamThread(busy) as one,
        UpstreamThread(busy) as other,
        serving(tmp_path, one, other, policy=policy(workflows=kinds, failures=slow)) as gateway,
        ThreadPoolExecutor(4) as pool,
    ):
        began = time.monotonic()
        answers = list(pool.map(lambda n: post(gateway, f"t-{n}", "brief"), range(4)))
        assert time.monotonic() - began < 6
        assert {error_of(got)["code"] for got in answers} == {"no_capacity"}
        wait_until(lambda: held(store, ACME) == 0, 5, "nothing held")
        assert {e.spend_nanousd for _, e in usage_events(store, ACME)} == {0}


def test_calls_without_a_task_are_never_capped(two: list[GatewayProcess], store: Store):
    for _ in range(8):
        assert two[0].chat(**body_of()).status_code == 200
    assert not list(store.scan_iter("*:task*"))
