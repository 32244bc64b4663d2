"""A shipped playbook on a whole running demo: signal, act at the gateway, release by itself.

The other one, for a noisy tenant, is a station of the tour.
"""

import os
import re
import signal
import time
from typing import Any

import httpx
import psycopg
import pytest

from tests.stack import wait_until

pytestmark = pytest.mark.timeout(900)


class Console:
    """REST as the demo's operator."""

    def __init__(self, stack: Any) -> None:
        operator = stack.credentials["operator"]
        self.http = httpx.Client(base_url=stack.console_url, timeout=30, trust_env=False)
        page = self.http.get("/sign-in/").text
        token = re.search(r'name="csrfmiddlewaretoken" value="(\w+)"', page)
        fields = {
            "username": operator["username"],
            "password": operator["password"],
            "csrfmiddlewaretoken": token.group(1) if token else "",
        }
        self.http.post("/sign-in/", data=fields, headers={"Referer": stack.console_url})

    def __call__(self, method: str, path: str, body: Any = None) -> Any:
        token = next(v for k, v in self.http.cookies.items() if "csrf" in k)
        headers = {"X-CSRFToken": token, "Referer": str(self.http.base_url)}
        answer = self.http.request(method, f"/api/v1/{path}", json=body, headers=headers)
        assert answer.status_code < 300, answer.text
        return answer.json()

    def runs(self, playbook: str, subject: str) -> list[Any]:
        found = self("GET", f"playbooks/{playbook}/runs/")["items"]
        return [run for run in found if run["subject"] == subject]


@pytest.fixture
def console(stack: Any) -> Console:
    return Console(stack)


def ask(stack: Any, secret: str, **options: Any) -> httpx.Response:
    headers = {"authorization": f"Bearer {secret}"}
    if work_class := options.pop("work_class", ""):
        headers["x-headrace-class"] = work_class
    body = {
        "model": "llama-8b",
        "max_tokens": 8,
        "messages": [{"role": "user", "content": f"{time.monotonic_ns()} hello"}],
    } | options
    with httpx.Client(timeout=120, trust_env=False) as client:
        return client.post(f"{stack.gateway_url}/v1/chat/completions", json=body, headers=headers)


def test_a_killed_replica_pauses_batch_on_the_demo_and_it_resumes(
    stack: Any, console: Console
) -> None:
    acme = next(one for one in stack.credentials["demo_callers"] if one["name"] == "acme")
    secret = acme["secret"]
    wait_until(lambda: ask(stack, secret, work_class="batch").status_code == 200, 60, "batch")

    def is_paused() -> bool:
        kill(stack, "eu-a-8b-1")  # it keeps dying for as long as we look
        return ask(stack, secret, work_class="batch").status_code == 503

    wait_until(is_paused, 60, "the pause")
    refused = ask(stack, secret, work_class="batch").json()["error"]
    assert refused["code"] == "class_paused"
    assert "eu-a-8b" not in refused["message"]
    standard = ask(stack, secret, max_tokens=4000)
    assert standard.status_code == 200
    assert standard.headers["x-headrace-degraded"] == "output_cap=1024"
    run = console.runs("capacity-lost", "eu-a-8b")[0]
    assert run["state"] == "acting"
    in_force = console("GET", "overrides/?active=true")["items"]
    assert "pause" in {one["kind"] for one in in_force if one["run_id"] == run["id"]}
    wait_until(
        lambda: ask(stack, secret, work_class="batch").status_code == 200, 240, "batch again"
    )
    wait_until(lambda: console.runs("capacity-lost", "eu-a-8b")[0]["ended_at"], 60, "its end")
    detail = console("GET", f"playbooks/capacity-lost/runs/{run['id']}/")
    assert detail["acts"][0]["title"] == "Pause batch"
    assert all(act["undone_at"] for act in detail["acts"])


def kill(stack: Any, replica: str) -> None:
    """End the replica's present process, if it has one."""
    query = "SELECT handle FROM capacity_replica WHERE name = %s AND removed_at IS NULL"
    with psycopg.connect(stack.settings["DATABASE_URL"], autocommit=True) as connection:
        row = connection.execute(query, [replica]).fetchone()
    pid = int(row[0].get("pid", 0)) if row else 0
    if pid > 1:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            return
