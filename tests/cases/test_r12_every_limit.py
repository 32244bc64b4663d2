"""R12: every limit that can be set is stored and enforced."""

from typing import Any
from urllib.parse import urlencode

import pytest

from routing.contracts.enums import Dimension, LimitScope, WindowKind
from tenants.quotas.rules import GAUGES
from tests.managing import SECONDS_TO_TAKE_EFFECT, Manager, managed_gateway, managed_world
from tests.stack import wait_until
from tests.upstream import UpstreamThread, answer, json_script

pytestmark = pytest.mark.django_db(transaction=True)

WINDOWS = [window for window in WindowKind if window is not WindowKind.NOW]
CODES = {
    Dimension.SPEND_NANOUSD: "budget_exceeded",
    Dimension.CONCURRENCY: "concurrency_limited",
    Dimension.KV_TOKENS: "concurrency_limited",
}


def offered(subjects: dict[LimitScope, dict[str, Any]]):
    """Each dimension and window for keys, and each dimension for every other scope."""
    for scope, subject in subjects.items():
        for dimension in Dimension:
            windows = [WindowKind.NOW] if dimension in GAUGES else WINDOWS
            for window in windows if scope is LimitScope.KEY else windows[:1]:
                yield {
                    "scope": scope.value,
                    "dimension": dimension.value,
                    "window": window.value,
                    **subject,
                }


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
        }
        with managed_gateway(world, store, tmp_path / "state") as gateway:

            def asked() -> tuple[int, str]:
                found = gateway.chat(key.secret, model="llama-8b", max_tokens=5)
                body = found.json()
                return found.status_code, body["error"]["code"] if "error" in body else ""

            assert asked() == (200, "")
            for limit in offered(subjects):
                dimension = Dimension(limit["dimension"])
                is_spend = dimension is Dimension.SPEND_NANOUSD
                amount = {"amount_usd": "0.00"} if is_spend else {"amount": 0}
                saved = manager.call("put", "tenants/acme/limits/", {**limit, **amount})
                assert saved.status_code == 200, saved.content
                (read,) = manager.call("get", "tenants/acme/limits/").json()
                assert {name: read[name] for name in (*limit, *amount)} == {**limit, **amount}
                refusal = (429, CODES.get(dimension, "rate_limited"))
                wait_until(lambda: asked() == refusal, SECONDS_TO_TAKE_EFFECT, str(limit))  # noqa: B023
                removed = manager.call("delete", f"tenants/acme/limits/?{urlencode(limit)}")
                assert removed.status_code == 204
                wait_until(lambda: asked() == (200, ""), SECONDS_TO_TAKE_EFFECT, "served again")


def test_a_misspelled_name_and_a_wrong_type_are_400(store, tmp_path):
    with UpstreamThread() as upstream:
        manager = Manager(managed_world(upstream, "acme"))
    limit = {"scope": "tenant", "dimension": "req", "window": "m"}
    for wrong in ({"amuont": 1}, {"amount": "1"}, {"amount": None}, {"rpm": 1, "amount": 1}):
        refused = manager.call("put", "tenants/acme/limits/", {**limit, **wrong})
        assert refused.status_code == 400, wrong
    assert manager.call("get", "tenants/acme/limits/").json() == []
