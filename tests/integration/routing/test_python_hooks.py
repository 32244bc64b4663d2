"""Python hooks of an installed package, at a real gateway."""

import os
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.gatewaying import error_of
from tests.hooking import LONG, Gate, install, python, use
from tests.stack import make_snapshot, policy, start_gateway
from tests.upstream import UpstreamThread, answer, json_script


def test_python_hooks_of_an_installed_package_pass_and_refuse(gate: Gate) -> None:
    gate.ask(
        use("words"), use("whose"), words=python("words", "refuse_word"), b=python("whose", "wait")
    )
    gate.engine.plan(json_script(answer("hey")))
    passed = gate.post()
    assert passed.status_code == 200, passed.text
    assert sorted(gate.row(passed).hops_us) == ["hook.whose.before.pass", "hook.words.before.pass"]
    refused = gate.post(messages=[{"role": "user", "content": "a forbidden word"}])
    assert error_of(refused.json()) == "hook_refused"
    assert "no such words" in refused.text


@pytest.mark.parametrize(
    ("entry_point", "error"),
    [
        ("fail", "raised ValueError"),
        ("unsure", "returned bool, not None or a reason"),
        ("broken", "cannot be loaded: ModuleNotFoundError"),
        ("absent", "no installed package has the entry point absent"),
        ("not_a_function", "is no function"),
    ],
)
def test_a_python_hook_that_fails_says_nothing_of_the_prompt(
    gate: Gate, entry_point: str, error: str
) -> None:
    name = entry_point.replace("_", "-")
    gate.ask(use(name), one=python(name, entry_point))
    refused = gate.post(messages=[{"role": "user", "content": "my private words"}])
    assert error_of(refused.json()) == "hook_failed"
    assert "private" not in refused.text
    assert gate.status().hooks[name].error == error
    assert "private" not in gate.gateway.log.read_text()


def test_a_hung_python_hook_is_bounded_in_threads(gate: Gate) -> None:
    tasks = Path(f"/proc/{gate.gateway.process.pid}/task")
    before = len(list(tasks.iterdir()))
    gate.engine.plan(json_script(answer("hey")))
    for name in ("hung-a", "hung-b", "hung-c"):  # each its own breaker: all are asked five times
        gate.ask(use(name, ms=50, fails_open=True), one=python(name, "hang"))
        assert {gate.post().status_code for _ in range(6)} == {200}
        assert gate.status().hooks[name].breaker == "open"
    assert len(list(tasks.iterdir())) <= before + 3 * 8


def test_a_gateway_with_hung_hooks_still_stops_in_order(tmp_path: Path, store: Any) -> None:
    env = {"PYTHONPATH": install(tmp_path)}
    hooks = {"hung": python("hung", "hang")}
    with UpstreamThread() as engine:
        found = policy(hooks=(use("hung", ms=50, fails_open=True),))
        snapshot = make_snapshot([engine.address], policy=found, hooks=hooks)
        url = os.environ["REDIS_URL"]
        with start_gateway(snapshot, url, tmp_path / "state", **env) as gateway:
            assert gateway.chat().status_code == 200
            page = httpx.get(f"{gateway.admin_url}/status", trust_env=False).json()
            assert page["hooks"]["hung"]["error"] == "no answer within 50 ms"  # it hangs, in truth
            gateway.process.terminate()
            assert gateway.process.wait(LONG) == 0
