"""A running stack with a part that hangs: `status`, REST and the pages name it in bounded time."""

import json
import os
import signal
import time
from contextlib import closing

import httpx

from console.supervisor.answer import collect
from console.supervisor.state import State
from tests.breaking import stopped, wait_for
from tests.conftest import Stack

BOUND_S = 3.0


def seen(stack: Stack) -> tuple[dict, float]:
    """What `status` says, and how long that took."""
    began_s = time.monotonic()
    answer = collect(State(stack.state))
    return answer, time.monotonic() - began_s


def named(answer: dict) -> set[tuple[str, str]]:
    return {(found["part"], found["word"]) for found in answer["conditions"]}


def of_part(answer: dict, part: str) -> dict:
    return next(found for found in answer["conditions"] if found["part"] == part)


def _bound(stack: Stack) -> str:
    """What holds meanwhile; gateways say it once they have noticed themselves."""
    return next((it["bound"] for it in seen(stack)[0]["conditions"] if it["part"] == "store"), "")


def operator(stack: Stack) -> httpx.Client:
    """A signed-in browser's client."""
    client = httpx.Client(base_url=stack.console_url, timeout=15, trust_env=False)
    client.get("/sign-in/")
    who = stack.credentials["operator"]
    answer = client.post(
        "/sign-in/",
        data={
            "username": who["username"],
            "password": who["password"],
            "csrfmiddlewaretoken": client.cookies["headrace_csrf"],
        },
        headers={"Referer": f"{stack.console_url}/sign-in/"},
    )
    assert answer.status_code == 302
    return client


def test_a_healthy_stack_has_nothing_bad_to_say(stack: Stack) -> None:
    wait_for(lambda: seen(stack)[0]["is_ready"], "readiness")
    answer, _ = seen(stack)
    assert [it for it in answer["conditions"] if it["tone"] == "bad"] == []
    versions = {row["name"]: row["version"] for row in answer["processes"]}
    assert versions["postgres"].startswith("18")
    assert versions["worker"] == answer["code_version"]
    assert {row["state"] for row in answer["engines"]} == {"running"}
    assert all(row["model"] and row["version"] for row in answer["engines"])


def test_a_store_that_hangs_is_named_everywhere_with_the_time_left(stack: Stack) -> None:
    with closing(operator(stack)) as console, stopped("valkey", stack):
        wait_for(lambda: ("store", "hanging") in named(seen(stack)[0]), "condition")
        wait_for(lambda: _bound(stack).startswith("local shares, at most 300 s, "), "the bound")
        answer, took_s = seen(stack)
        assert took_s < BOUND_S
        found = of_part(answer, "store")
        assert found["bound"].endswith(" s left")
        assert found["next_step"].startswith("Continue it: `kill -CONT ")
        assert not answer["is_ready"]
        began_s = time.monotonic()
        page = console.get("/system/")
        assert time.monotonic() - began_s < BOUND_S
        assert page.status_code == 200
        assert "The store accepts connections and does not answer." in page.text
        told = console.get("/api/v1/system/").json()
        same = ("part", "word", "tone", "text", "next_step")  # of the bound, time goes on
        assert [of_part(told, "store")[key] for key in same] == [found[key] for key in same]
        overview = console.get("/").text
        assert "The store accepts connections and does not answer." in overview
    wait_for(lambda: seen(stack)[0]["is_ready"], "recovery by itself")


def test_a_database_that_hangs_is_named_by_status_and_in_every_answer(stack: Stack) -> None:
    with closing(operator(stack)) as console, stopped("postgres", stack):
        wait_for(lambda: ("postgres", "hanging") in named(seen(stack)[0]), "condition")
        answer, took_s = seen(stack)
        assert took_s < BOUND_S
        assert "Gateways serve from their last snapshot" in of_part(answer, "postgres")["text"]
        began_s = time.monotonic()
        page = console.get("/system/")
        assert time.monotonic() - began_s < BOUND_S
        assert page.status_code == 503
        assert page.headers["Retry-After"] == "5"
        done = stack.manage("status", "--json")
        assert done.returncode == 1
        assert ("postgres", "hanging") in named(json.loads(done.stdout))
    wait_for(lambda: seen(stack)[0]["is_ready"], "recovery by itself")


def test_a_killed_process_is_named_with_its_cause(stack: Stack) -> None:

    before = stack.process("collector")
    os.kill(before["pid"], signal.SIGKILL)
    told = wait_for(
        lambda: next(
            (it for it in seen(stack)[0]["conditions"] if it["part"] == "collector"), None
        ),
        "condition",
    )
    assert told["word"] in ("down", "starting")
    wait_for(lambda: seen(stack)[0]["is_ready"], "recovery by itself")
    after = stack.process("collector")
    assert after["last_reason"] == "killed by SIGKILL"
    assert after["restarts"] == before["restarts"] + 1
