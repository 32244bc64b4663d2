"""Both shipped playbooks on a whole running demo: signal, act at the gateway, release by itself."""

import os
import re
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import httpx
import psycopg
import pytest

from tests.stack import wait_until

pytestmark = pytest.mark.timeout(900)
SHORT, LONG = 60, 2400  # words of a prompt, about one token each
CAP_TOKENS = 1000


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


def ask(stack: Any, secret: str, words: int = SHORT, **options: Any) -> httpx.Response:
    headers = {"authorization": f"Bearer {secret}"}
    if work_class := options.pop("work_class", ""):
        headers["x-headrace-class"] = work_class
    body = {
        "model": "llama-8b",
        "max_tokens": 8,
        "messages": [{"role": "user", "content": f"{time.monotonic_ns()} " + "word " * words}],
    } | options
    with httpx.Client(timeout=120, trust_env=False) as client:
        return client.post(f"{stack.gateway_url}/v1/chat/completions", json=body, headers=headers)


@contextmanager
def traffic(stack: Any, secret: str) -> Iterator[dict[str, int]]:
    """One prompt a second of so many words, for as long as the test looks at it."""
    now, over = {"words": SHORT}, threading.Event()

    def one() -> None:
        with_error = ask(stack, secret, now["words"])
        assert with_error.status_code in (200, 429, 503)

    with ThreadPoolExecutor(16) as threads:

        def send() -> None:
            while not over.wait(1.0):
                threads.submit(one)

        sender = threading.Thread(target=send)
        sender.start()
        try:
            yield now
        finally:
            over.set()
            sender.join()


@contextmanager
def quickly(console: Console, playbook: str, **changes: Any) -> Iterator[None]:
    """The playbook with shorter times, and as it was afterwards."""
    before = console("GET", f"playbooks/{playbook}/")
    document = before["document"] | changes
    document["timing"] = before["document"]["timing"] | changes["timing"]
    base = console(
        "PUT", f"playbooks/{playbook}/", {"document": document, "base": before["version"]}
    )
    try:
        yield
    finally:
        body = {"document": before["document"], "base": base["version"]}
        console("PUT", f"playbooks/{playbook}/", body)


def test_a_noisy_tenant_is_contained_on_the_demo_and_released(stack: Any, console: Console) -> None:
    console("POST", "tenants/", {"slug": "loud", "name": "Loud"})
    secret = console("POST", "tenants/loud/keys/", {"name": "k", "allowed_models": ["*"]})["secret"]
    console("POST", "tenants/", {"slug": "calm", "name": "Calm"})
    calm = console("POST", "tenants/calm/keys/", {"name": "k", "allowed_models": ["*"]})["secret"]
    step = console("GET", "playbooks/noisy-tenant/")["document"]["steps"][0]
    caps = [{"kind": "context_cap", "amount": CAP_TOKENS}, {"kind": "concurrency_cap", "amount": 4}]
    changes = {
        "timing": {"leave_for_s": 5, "down_every_s": 5, "enter_for_s": 0},
        "steps": [step | {"measures": caps}],
        "least_tokens_per_min": 10_000,
        "baseline_least_min": 1,
    }
    assert console("GET", "playbooks/noisy-tenant/")["mode"] == "armed"
    with quickly(console, "noisy-tenant", **changes), traffic(stack, secret) as sent:
        wait_until(lambda: ask(stack, secret).status_code == 200, 30, "the key in force")
        until_known(stack)
        sent["words"] = LONG
        run = wait_until(lambda: console.runs("noisy-tenant", "loud"), 120, "the run")[0]
        assert (run["state"], run["is_dry_run"]) == ("acting", False)
        assert run["start_value"] >= 3
        refused = ask(stack, secret, LONG)
        assert refused.status_code == 429
        assert refused.json()["error"]["code"] == "context_capped"
        assert step["reason"] in refused.json()["error"]["message"]
        assert ask(stack, calm, LONG).status_code == 200
        sent["words"] = SHORT
        wait_until(lambda: console.runs("noisy-tenant", "loud")[0]["ended_at"], 180, "its end")
        assert ask(stack, secret, LONG).status_code == 200
    detail = console("GET", f"playbooks/noisy-tenant/runs/{run['id']}/")
    assert detail["run"]["end_reason"] == "The signal has ended."
    (act,) = detail["acts"]
    assert act["undone_by"] == "playbook:noisy-tenant"
    assert act["before"]["requests_per_min"] > 0
    assert act["after"]["requests_per_min"] > 0
    assert len(detail["samples"]) >= 3


def until_known(stack: Any) -> None:
    """Wait until a whole minute of the tenant is rolled up and lies before the present window."""
    query = (
        "SELECT 1 FROM telemetry_sliceminute m JOIN tenants_tenant t ON t.id = m.tenant_id"
        " WHERE t.slug = 'loud' AND m.minute_at < date_trunc('minute', now()) - interval '1 min'"
        " HAVING count(DISTINCT m.minute_at) > 1"  # the first one is not a whole one
    )
    with psycopg.connect(stack.settings["DATABASE_URL"], autocommit=True) as connection:
        wait_until(lambda: connection.execute(query).fetchone(), 300, "a rolled-up minute")


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
