"""R12: every limit that can be set is stored and enforced."""

from collections.abc import Callable
from typing import Any
from urllib.parse import urlencode

import httpx
import pytest

from routing.contracts.capacity import LIMITED
from routing.contracts.enums import Dimension, LimitScope, WindowKind
from tenants.prices.services import add_resource_price
from tenants.quotas.rules import GAUGES, RESOURCE_DIMENSIONS
from tests.factories import ACTOR
from tests.managing import SECONDS_TO_TAKE_EFFECT, Manager, managed_gateway, managed_world
from tests.stack import GatewayProcess, wait_until
from tests.upstream import UpstreamThread, answer, json_script

pytestmark = pytest.mark.django_db(transaction=True)

WINDOWS = [window for window in WindowKind if window is not WindowKind.NOW]
CODES = {
    Dimension.SPEND_NANOUSD: "budget_exceeded",
    Dimension.CONCURRENCY: "concurrency_limited",
    Dimension.KV_TOKENS: "concurrency_limited",
}


def offered(subjects: dict[LimitScope, dict[str, Any]]):
    """Each dimension and window for keys; for every other scope each of both, if not all pairs."""
    for turn, (scope, subject) in enumerate(subjects.items()):
        for number, dimension in enumerate(Dimension):
            if scope is LimitScope.RESOURCE and dimension not in RESOURCE_DIMENSIONS:
                continue
            windows = [WindowKind.NOW] if dimension in GAUGES else WINDOWS
            some = windows[(turn + number) % len(windows) :][:1]
            for window in windows if scope is LimitScope.KEY else some:
                yield {
                    "scope": scope.value,
                    "dimension": dimension.value,
                    "window": window.value,
                    **subject,
                }


def small(dimension: Dimension) -> dict[str, Any]:
    """The least that one call exceeds. Calls before count too; alone it is within one at a time."""
    if dimension is Dimension.SPEND_NANOUSD:
        return {"amount_usd": "0.000000001"}
    return {"amount": 0 if dimension is Dimension.CONCURRENCY else 1}


def answer_of(found: httpx.Response) -> tuple[int, str]:
    body = found.json()
    return found.status_code, body["error"]["code"] if "error" in body else ""


def use_once(gateway: GatewayProcess, secret: str) -> tuple[int, str]:
    """One use of `vector_query`, ended at once."""
    path, headers = f"{gateway.url}/v1/resources", {"authorization": f"Bearer {secret}"}
    with httpx.Client(headers=headers, trust_env=False) as client:
        held = client.post(f"{path}/vector_query/reserve", json={})
        if held.status_code == 200:
            assert client.post(f"{path}/{held.json()['id']}/settle", json={}).status_code == 200
    return answer_of(held)


def check_shared_limits(manager: Manager, chat: Callable[[], tuple[int, str]]) -> None:
    """Those of the pool and of the fleet."""
    for path in ("pools/p-a/limits/", "fleet/limits/"):
        for one in LIMITED:
            wanted = {"dimension": one.value, "amount": 0}
            saved = manager.call("put", path, {**wanted, "confirm": True})
            assert saved.status_code == 200, saved.content
            (read,) = manager.call("get", path).json()
            assert {name: read[name] for name in wanted} == wanted
            full = (503, "no_capacity")
            wait_until(lambda: chat() == full, SECONDS_TO_TAKE_EFFECT, f"{path} {one}")  # noqa: B023
            removed = manager.call("delete", f"{path}?dimension={one.value}")
            assert removed.status_code == 204
            wait_until(lambda: chat() == (200, ""), SECONDS_TO_TAKE_EFFECT, "served again")


def test_each_limit_reads_back_and_refuses_within_seconds(store, tmp_path):
    with UpstreamThread() as upstream:
        world = managed_world(upstream, "acme")
        upstream.plan(json_script(answer()))
        manager, key = Manager(world), world.keys["acme"]
        subjects = {
            LimitScope.TENANT: {},
            LimitScope.KEY: {"key_id": key.id},
            LimitScope.TENANT_MODEL: {"model": "llama-8b"},
            LimitScope.TENANT_CLASS: {"work_class": "standard"},
            LimitScope.RESOURCE: {"resource": "vector_query"},
        }
        assert set(subjects) == set(LimitScope), "every scope that the API offers"
        add_resource_price(
            resource="vector_query", unit_nanousd=1_000_000, valid_from=None, note="", actor=ACTOR
        )
        with managed_gateway(world, store, tmp_path / "state") as gateway:

            def chat() -> tuple[int, str]:
                return answer_of(gateway.chat(key.secret, model="llama-8b", max_tokens=5))

            def use() -> tuple[int, str]:
                return use_once(gateway, key.secret)

            assert (chat(), use()) == ((200, ""), (200, ""))
            for limit in offered(subjects):
                dimension = Dimension(limit["dimension"])
                amount = small(dimension)
                saved = manager.call("put", "tenants/acme/limits/", {**limit, **amount})
                assert saved.status_code == 200, saved.content
                (read,) = manager.call("get", "tenants/acme/limits/").json()
                assert {name: read[name] for name in (*limit, *amount)} == {**limit, **amount}
                refusal = (429, CODES.get(dimension, "rate_limited"))
                asked = use if "resource" in limit else chat
                wait_until(lambda: asked() == refusal, SECONDS_TO_TAKE_EFFECT, str(limit))  # noqa: B023
                removed = manager.call("delete", f"tenants/acme/limits/?{urlencode(limit)}")
                assert removed.status_code == 204
                wait_until(lambda: asked() == (200, ""), SECONDS_TO_TAKE_EFFECT, "served again")  # noqa: B023
            check_shared_limits(manager, chat)


def test_a_misspelled_name_and_a_wrong_type_are_400(store, tmp_path):
    with UpstreamThread() as upstream:
        manager = Manager(managed_world(upstream, "acme"))
    limit = {"scope": "tenant", "dimension": "req", "window": "m"}
    for wrong in ({"amuont": 1}, {"amount": "1"}, {"amount": None}, {"rpm": 1, "amount": 1}):
        refused = manager.call("put", "tenants/acme/limits/", {**limit, **wrong})
        assert refused.status_code == 400, wrong
    assert manager.call("get", "tenants/acme/limits/").json() == []
    for path in ("pools/p-a/limits/", "fleet/limits/"):
        right = {"dimension": "req", "amount": 1}
        for wrong in ({"amuont": 1}, {"amount": "1"}, {"amount": None}, {"window": "m"}):
            refused = manager.call("put", path, {**right, **wrong})
            assert refused.status_code == 400, (path, wrong)
        assert manager.call("put", path, {"dimension": "usd", "amount": 1}).status_code == 400
        assert manager.call("get", path).json() == []


def test_a_limit_that_stops_everybody_must_be_meant(store, tmp_path):
    with UpstreamThread() as upstream:
        manager = Manager(managed_world(upstream, "acme"))
    for path in ("fleet/limits/", "pools/p-a/limits/"):
        refused = manager.call("put", path, {"dimension": "req", "amount": 0})
        assert refused.status_code == 422
        assert refused.json()["code"] == "limit_needs_confirmation"
        assert refused.json()["field"] == "amount"
        assert manager.call("get", path).json() == []
        meant = {"dimension": "req", "amount": 0, "confirm": True}
        assert manager.call("put", path, meant).status_code == 200
