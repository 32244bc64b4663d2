"""Async tests here run in the gateway's own kind of loop, those of the store on both its forms."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from routing.store.pooled import sync_client
from tests.accounting import PrivateStore
from tests.clustering import Cluster, running_cluster
from tests.hooking import Gate, opened_gate

ONE_SERVER, CLUSTER = "one server", "three masters"
ON_BOTH = {"test_reservations", "test_accounting", "test_exact_limits"}


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, bool]]:
    """uvloop, as in production."""
    return "asyncio", {"use_uvloop": True}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Same scripts, same tests: one server and a cluster."""
    name = metafunc.module.__name__.rpartition(".")[2]
    if name in ON_BOTH and "store" in metafunc.fixturenames:
        metafunc.parametrize("store", [ONE_SERVER, CLUSTER], indirect=True)


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """Three masters for all tests of a session; who breaks one starts a cluster of its own."""
    with running_cluster() as found:
        yield found


@pytest.fixture
def store(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[redis.Redis]:
    """The store, emptied: the suite's own server, or `REDIS_URL` names the cluster's masters."""
    if getattr(request, "param", ONE_SERVER) == CLUSTER:
        masters = request.getfixturevalue("cluster")
        monkeypatch.setenv("REDIS_URL", masters.url)
        masters.flush()
    client = sync_client(os.environ["REDIS_URL"])
    client.flushall()
    yield client
    client.close()


@pytest.fixture
def private(tmp_path: Path) -> Iterator[PrivateStore]:
    """A store of one test's own, to be killed, paused or filled."""
    directory = tmp_path / "valkey"
    directory.mkdir()
    server = PrivateStore(directory).start()
    yield server
    server.stop()


@pytest.fixture(scope="module")
def gate(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gate]:
    """A gateway whose hooks a module's tests plan; it empties the store once."""
    with opened_gate(tmp_path_factory.mktemp("hooks")) as found:
        yield found
