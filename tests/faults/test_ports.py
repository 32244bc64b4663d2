"""A port that another process takes between a crash and the restart: named, then taken back."""

import os
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.breaking import pid_of
from tests.conftest import Stack
from tests.supervising import conditions, own_stack, until, up_refused

BACK_WITHIN_S = 60.0  # starts are at most 30 s apart
GRAB_WITHIN_S = 5.0

pytestmark = pytest.mark.timeout(600)  # a shared stack starts several times, on any machine


@pytest.fixture(scope="module")
def running() -> Iterator[Stack]:
    with own_stack() as stack:
        stack.up()
        yield stack


@contextmanager
def grabbed(port: int) -> Iterator[None]:
    """Hold a port from the moment that its owner is dead."""
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        give_up_s = time.monotonic() + GRAB_WITHIN_S
        while True:
            try:
                taken.bind(("127.0.0.1", port))
                break
            except OSError:
                assert time.monotonic() < give_up_s, f"port {port} never became free"
        taken.listen()
        yield


def row(stack: Stack, name: str) -> dict[str, object]:
    return next(item for item in stack.status()["processes"] if item["name"] == name)


def ports_of(stack: Stack, name: str) -> list[int]:
    port = row(stack, name)["port"]
    assert isinstance(port, int)
    # Without a policy a gateway opens only its own page, which answers `status`.
    return [port + 100 if name == "gateway-g0" else port]


def told(stack: Stack, name: str, *words: str) -> bool:
    """Whether the condition of a process says this; between two attempts it is only dead."""
    text = conditions(stack).get(f"{name} down", {}).get("text", "")
    return all(word in text for word in words)


@pytest.mark.parametrize("name", ["console", "gateway-g0", "postgres", "valkey"])
def test_taken_port_is_named_with_its_holder_and_taken_back(running: Stack, name: str) -> None:
    for port in ports_of(running, name):
        victim = pid_of(running, name)
        os.kill(victim, signal.SIGKILL)
        with grabbed(port):
            said = f"port {port} is taken by pid {os.getpid()} ("
            until(lambda n=name, s=said: s in str(row(running, n)["last_reason"]), said)
            assert said in running.manage("status").stdout
            if name in ("console", "gateway-g0"):  # of a server its own condition tells more
                words = (said, "starts again in ")
                until(lambda n=name, w=words: told(running, n, *w), f"the condition: {said}")
        until(lambda: running.status()["is_ready"], f"{name} is back", BACK_WITHIN_S)
        assert pid_of(running, name) != victim


def test_next_start_moves_servers_to_free_ports(running: Stack) -> None:
    taken = {name: ports_of(running, name)[0] for name in ("postgres", "valkey")}
    running.down()
    with grabbed(taken["postgres"]), grabbed(taken["valkey"]):
        running.up()
        assert running.status()["is_ready"]
        for name, port in taken.items():
            assert ports_of(running, name) != [port]


def test_setting_that_cannot_be_read_ends_the_start_with_its_name(running: Stack) -> None:
    running.down()
    running.environment["HEADRACE_GATEWAY_DRAIN_S"] = "soon"
    line = up_refused(running)
    del running.environment["HEADRACE_GATEWAY_DRAIN_S"]
    assert "gateway-g0 does not start: exited with 2: " in line
    assert "HEADRACE_GATEWAY_DRAIN_S" in line
