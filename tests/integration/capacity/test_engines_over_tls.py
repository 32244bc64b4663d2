"""Pools of engines of our own behind TLS: checked, scraped and called over it, or refused."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest
import redis

from capacity.drivers.base import DriverError, Observed, PoolSpec
from capacity.drivers.static import StaticDriver
from capacity.fleet import selectors, services
from capacity.fleet.services import inventory, reconcile
from capacity.models import Pool
from console.audit.rules import SYSTEM
from console.errors import InvalidInput
from routing.contracts.enums import ReplicaHealth
from routing.contracts.snapshot import PoolEntry
from routing.gateway.fleet import HTTPS_PORT, Fleet
from tests.collecting import endpoint, launch_collector, start_collector
from tests.engines import MODEL, EngineProcess, engine
from tests.gatewaying import error_of, serving
from tests.providing import LOOPBACK, behind_tls, certificate
from tests.stack import make_snapshot, model, pool, publish, store_server, wait_until

HERE = frozenset((LOOPBACK,))
REFUSED = f"certificate refused: IP address mismatch, certificate is not valid for '{LOOPBACK}'."


class Ends(NamedTuple):
    """TLS ends of one engine: one shows its own certificate, the other that of another host."""

    engine: EngineProcess
    good: int
    strange: int
    authorities: Path

    def spec(self, port: int, **settings: object) -> PoolSpec:
        return PoolSpec("own", MODEL, {"addresses": [f"{LOOPBACK}:{port}"], **settings})


@pytest.fixture(scope="module")
def ends(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ends]:
    """Both authorities are trusted: only the name tells the certificates apart."""
    root = tmp_path_factory.mktemp("tls")
    good, public = certificate(root)
    (root / "other").mkdir()
    strange, other = certificate(root / "other", "192.0.2.1")
    authorities = root / "authorities.pem"
    authorities.write_bytes(public.read_bytes() + other.read_bytes())
    with (
        engine() as running,
        behind_tls(good, running.port) as good_port,
        behind_tls(strange, running.port) as strange_port,
    ):
        yield Ends(running, good_port, strange_port, authorities)


def secured(name: str, *ports: int) -> PoolEntry:
    """A pool as gateways and the collector are told of it."""
    plain = pool(name, [(LOOPBACK, port) for port in ports], MODEL)
    return msgspec.structs.replace(plain, has_tls=True)


def test_an_engine_is_checked_over_tls(ends: Ends) -> None:
    driver = StaticDriver(str(ends.authorities), HERE)
    spec = ends.spec(ends.good, tls=True)
    driver.check(spec)
    handle = driver.start(spec, 0)
    seen = driver.status(spec, handle, wait_s=10)
    assert (seen.observed, seen.cause) == (Observed.SERVING, "")
    told = driver.identify(spec, handle)
    assert told is not None
    assert told.serves == (MODEL,)
    assert driver.probe(spec, handle)
    for settings in ({}, {"tls": False}):
        plain = ends.spec(ends.good, **settings)
        driver.check(plain)
        assert driver.status(plain, handle).observed is Observed.STARTING
        assert not driver.probe(plain, handle)


@pytest.mark.parametrize("is_trusted", [True, False])
def test_an_engine_with_a_wrong_certificate_is_a_stranger(ends: Ends, is_trusted: bool) -> None:
    """Another host's, or one that nobody vouches for."""
    driver = StaticDriver(str(ends.authorities) if is_trusted else "", HERE)
    spec = ends.spec(ends.strange if is_trusted else ends.good, tls=True)
    handle = driver.start(spec, 0)
    seen = driver.status(spec, handle, wait_s=10)
    why = REFUSED if is_trusted else "certificate refused: self-signed certificate"
    assert (seen.observed, seen.cause) == (Observed.WRONG, why)
    assert driver.identify(spec, handle) is None
    assert not driver.probe(spec, handle)


def test_authorities_that_cannot_be_read_are_no_answer(ends: Ends, tmp_path: Path) -> None:
    driver = StaticDriver(str(tmp_path / "none.pem"), HERE)
    spec = ends.spec(ends.good, tls=True)
    handle = driver.start(spec, 0)
    seen = driver.status(spec, handle)
    assert (seen.observed, seen.cause[:4]) == (Observed.STARTING, "TLS:")
    assert driver.identify(spec, handle) is None
    assert not driver.probe(spec, handle)


@pytest.mark.parametrize("tls", [None, 1, 0, "true", "", [True]])
def test_tls_is_true_or_false(tls: object) -> None:
    spec = PoolSpec("own", MODEL, {"addresses": ["10.0.0.7:8000"], "tls": tls})
    with pytest.raises(DriverError, match="'tls' is true or false"):
        StaticDriver().check(spec)


@pytest.mark.django_db
def test_a_pool_says_so_in_its_settings_and_shows_why_a_replica_is_refused(
    ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = {"static": StaticDriver(str(ends.authorities), HERE)}
    for module in (inventory, reconcile):
        monkeypatch.setattr(module, "drivers", lambda: ours)
    services.create_region(slug="eu", name="Europe", actor=SYSTEM)
    services.create_domain(region="eu", slug="a", actor=SYSTEM)
    services.create_model(name=MODEL, context_tokens=16_384, actor=SYSTEM)

    def put(name: str, **settings: object) -> None:
        addresses = [f"{LOOPBACK}:{port}" for port in (ends.good, ends.strange)]
        services.create_pool(
            name=name, model=MODEL, driver="static", region="eu", domain="a",
            spec={"addresses": addresses, **settings}, desired_replicas=2, actor=SYSTEM,
        )  # fmt: skip

    put("own", tls=True)
    services.reconcile_pools()
    found = selectors.pool_detail("own")
    assert found.spec["tls"] is True
    assert found.pool.replicas[0].lifecycle == "ready"
    became = {(one.replica, one.after, one.cause) for one in found.changes}
    assert ("own-1", "failed", REFUSED) in became
    assert not any(name == "own-1" and after == "ready" for name, after, _ in became)
    entry = selectors.pools_for_snapshot()["own"]
    assert (entry.has_tls, entry.is_hosted) == (True, False)
    assert [one.port for one in entry.endpoints] == [ends.good]

    put("plain", tls=False)
    assert not selectors.pools_for_snapshot()["plain"].has_tls
    with pytest.raises(InvalidInput, match="'tls' is true or false") as refused:
        put("odd", tls="yes")
    assert refused.value.field == "spec"
    assert not Pool.objects.filter(name="odd").exists()


def test_metrics_are_scraped_over_tls_and_a_strangers_are_not(ends: Ends, tmp_path: Path) -> None:
    with store_server(tmp_path / "store") as url, closing(redis.Redis.from_url(url)) as store:
        broken = launch_collector(url, tmp_path, HEADRACE_PROVIDER_CA_FILE=str(tmp_path / "none"))
        assert broken.process.wait(20) == 2
        assert "HEADRACE_PROVIDER_CA_FILE cannot be used" in broken.log.read_text()
        pools = {
            "tls": secured("tls", ends.good, ends.strange),
            "plain": pool("plain", [(LOOPBACK, ends.engine.port)], MODEL),
        }
        publish(store, make_snapshot([], pools=pools))
        authorities = str(ends.authorities)
        with start_collector(url, tmp_path, HEADRACE_PROVIDER_CA_FILE=authorities):

            def states() -> list[tuple[ReplicaHealth, str] | None]:
                found = [
                    endpoint(store, "tls"),
                    endpoint(store, "plain"),
                    endpoint(store, "tls", 1),
                ]
                return [(one.health, one.reason) if one else None for one in found]

            wanted = [(ReplicaHealth.OK, "")] * 2 + [(ReplicaHealth.STALE, REFUSED)]
            wait_until(lambda: states() == wanted, 20, "both scraped, the stranger refused")
            assert (state := endpoint(store, "tls")) is not None
            assert state.kv_capacity_tokens


def test_calls_go_over_tls_and_not_to_a_stranger(ends: Ends, store: object, tmp_path: Path) -> None:
    env = {
        "HEADRACE_PROVIDER_CA_FILE": str(ends.authorities),
        "HEADRACE_PRIVATE_PROVIDERS": LOOPBACK,
    }
    pools = {"own": secured("own", ends.good), "odd": secured("odd", ends.strange)}
    models = {"alpha-8b": model("alpha-8b", ("own",)), "free-3b": model("free-3b", ("odd",))}
    with serving(tmp_path, env=env, pools=pools, models=models) as gateway:
        asked = [ends.engine.metrics()["vllm:prompt_tokens_total"]]
        for name, status in (("alpha-8b", 200), ("free-3b", 502)):
            answer = gateway.chat(model=name)
            assert answer.status_code == status, answer.text
            asked.append(ends.engine.metrics()["vllm:prompt_tokens_total"])
        assert asked[0] < asked[1] == asked[2]
        assert error_of(answer.json()) == "upstream_error"


def test_a_pool_that_takes_to_tls_is_reached_anew() -> None:
    fleet, made = Fleet(), []
    secure = secured("own", HTTPS_PORT)
    for entry in (msgspec.structs.replace(secure, has_tls=False), secure, secure):
        fleet.take_snapshot(make_snapshot([], pools={"own": entry}), 0.0, 0)
        made.append(fleet.endpoints["own-u1"])
    plain, first, second = made
    assert plain is not first
    assert first is second
    heads = [one.head(b"POST", b"/v1/completions", b"r", 0) for one in (plain, first)]
    assert [f"host: {LOOPBACK}:443\r\n".encode() in head for head in heads] == [True, False]
