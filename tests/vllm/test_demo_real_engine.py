"""`up --demo --real-engine`: a newcomer's way to a real vLLM, its end, and a start without it."""

import json
import os
import signal
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from capacity.drivers.vllm_env import VllmEnvironment
from console.demo.real_engine import REPLICAS
from console.supervisor import proc
from console.supervisor.state import State
from tests.conftest import Stack
from tests.engines import wait_for

UP_LIMIT_S = 900
pytestmark = pytest.mark.timeout(1800)


def ask(stack: Stack, caller: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    body = {
        "model": "tiny-vllm",
        "messages": [{"role": "user", "content": "hello"}],
        "max_tokens": 12,
    }
    request = Request(
        f"{stack.gateway_url}/v1/chat/completions",
        json.dumps(body).encode(),
        {
            "authorization": f"Bearer {caller['secret']}",
            "content-type": "application/json",
        },
    )
    try:
        with urlopen(request, timeout=60) as answer:
            return answer.status, json.load(answer)
    except HTTPError as error:
        return error.code, json.load(error)


def replicas(stack: Stack) -> list[dict[str, Any]]:
    return [row for row in stack.status()["engines"] if row["name"].startswith("vllm-cpu-")]


def test_real_engine_serves_demo_keys_and_leaves_with_the_flag(
    bare_stack: Stack, vllm_environment: VllmEnvironment
) -> None:
    bare_stack.up("--demo", "--real-engine", timeout_s=UP_LIMIT_S)
    assert "vLLM 0.32.0 is ready" in bare_stack.started
    assert [row["state"] for row in replicas(bare_stack)] == ["running"] * REPLICAS
    for caller in bare_stack.credentials["demo_callers"]:
        status, answer = ask(bare_stack, caller)
        assert (status, answer.get("usage", {}).get("completion_tokens")) == (200, 12), answer
        assert answer["choices"][0]["message"]["content"].isascii()
    supervisor = State(bare_stack.state).holder()
    assert supervisor is not None
    os.kill(supervisor.pid, signal.SIGKILL)
    assert not proc.wait_gone([supervisor], 30)
    bare_stack.down()  # checks that no process is left, vLLM's own children included

    bare_stack.up("--demo")
    wait_for(lambda: not replicas(bare_stack), 60, every_s=0.5)
    status, answer = ask(bare_stack, bare_stack.credentials["demo_callers"][0])
    assert (status, answer["error"]["code"]) == (503, "no_capacity")


def test_real_engine_without_a_demo_is_refused(bare_stack: Stack) -> None:
    done = bare_stack.manage("up", "--real-engine")
    assert done.returncode == 1
    assert done.stderr.strip().endswith("--real-engine adds to a demo: give --demo too")
