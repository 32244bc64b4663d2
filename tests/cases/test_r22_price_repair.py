"""R22: a wrongly entered price is repaired through the API, and applied to nothing by halves."""

import threading
from typing import Any

import httpx
import pytest

from console.audit.selectors import AuditFilter, trail
from tests.ledgering import running_writer
from tests.managing import SECONDS_TO_TAKE_EFFECT, Manager, managed_gateway, managed_world
from tests.stack import GatewayProcess, wait_until
from tests.upstream import UpstreamThread, answer, json_script, stream_script, usage

pytestmark = pytest.mark.django_db(transaction=True)

PRICE = {"model": "llama-8b", "input_usd_per_mtok": "0.00", "cached_usd_per_mtok": "0.00"}
OUTPUT = 4


def add_price(manager: Manager, output_usd: str, **fields: Any) -> Any:
    return manager.call("post", "prices/", {**PRICE, "output_usd_per_mtok": output_usd, **fields})


def rows(manager: Manager, count: int) -> list[dict[str, Any]]:
    def listed() -> list[dict[str, Any]]:
        items = manager.call("get", "usage/").json()["items"]
        return items if len(items) == count else []

    return wait_until(listed, 10, f"{count} ledger rows")


def code_of(response: httpx.Response) -> tuple[int, str]:
    body = response.json()
    return response.status_code, body.get("error", {}).get("code", "")


def serves(gateway: GatewayProcess, secret: str) -> tuple[int, str]:
    return code_of(gateway.chat(secret, model="llama-8b", max_tokens=OUTPUT))


def test_a_slip_locks_a_tenant_out_and_the_api_lets_it_in_again(store, tmp_path):
    with UpstreamThread() as upstream, running_writer():
        world = managed_world(upstream, "acme")
        upstream.plan(json_script(answer(used=usage(10, OUTPUT))))
        secret, manager = world.keys["acme"].secret, Manager(world)
        budget = {"scope": "tenant", "dimension": "usd", "window": "d", "amount_usd": "1.00"}
        assert manager.call("put", "tenants/acme/limits/", budget).status_code == 200
        asked = add_price(manager, "240000.00")
        assert (asked.status_code, asked.json()["code"]) == (422, "price_needs_confirmation")
        assert asked.json()["field"] == "output_usd_per_mtok"
        assert add_price(manager, "2400000.00", confirm=True).status_code == 422
        assert add_price(manager, "240000.00", confirm=True).json()["version"] == 2
        with managed_gateway(world, store, tmp_path / "state", has_ledger=True) as gateway:
            wait_until(lambda: serves(gateway, secret) == (200, ""), 20, "one request served")
            wait_until(lambda: serves(gateway, secret) == (429, "budget_exceeded"), 5, "locked out")
            (row,) = rows(manager, 1)
            assert (row["spend_usd"], row["price_version"]) == ("0.96", 2)

            assert add_price(manager, "2.40").json()["version"] == 3
            correction = {
                "request_id": row["request_id"],
                "reason": "price slip",
                "spend_usd": "-0.95",
                "note": "240000 instead of 2.40",
            }
            too_much = manager.call("post", "adjustments/", {**correction, "spend_usd": "-0.97"})
            assert (too_much.status_code, too_much.json()["field"]) == (422, "spend_usd")
            assert manager.call("post", "adjustments/", correction).status_code == 201
            wait_until(
                lambda: serves(gateway, secret) == (200, ""),
                SECONDS_TO_TAKE_EFFECT,
                "served again",
            )
            again = manager.call("post", "adjustments/", {**correction, "spend_usd": "-0.001"})
            assert again.status_code == 409, "once for each reason"

        read = manager.call("get", f"usage/{row['request_id']}/").json()
        assert (read["spend_usd"], read["adjusted_usd"], read["net_usd"]) == (
            "0.96",
            "-0.95",
            "0.01",
        )
        (line,) = manager.call("get", "adjustments/").json()["items"]
        assert (line["spend_usd"], line["reason"]) == ("-0.95", "price slip")
        (act,) = trail(AuditFilter(object_type="usage"))
        assert (act.actor, act.object_id) == ("ada", row["request_id"])


def test_a_running_stream_keeps_its_price_and_the_next_request_has_the_new_one(store, tmp_path):
    with UpstreamThread() as upstream, running_writer():
        world = managed_world(upstream, "acme")
        secret, manager = world.keys["acme"].secret, Manager(world)
        assert add_price(manager, "2.00").json()["version"] == 2
        with managed_gateway(world, store, tmp_path / "state", has_ledger=True) as gateway:
            texts = [str(number) for number in range(20)]
            upstream.plan(stream_script(texts, usage(10, 1_000), gap_s=0.2))
            started = threading.Event()

            def stream() -> None:
                body = {
                    "model": "llama-8b",
                    "stream": True,
                    "messages": [{"role": "user", "content": "hi"}],
                }
                headers = {"authorization": f"Bearer {secret}"}
                url = f"{gateway.url}/v1/chat/completions"
                with (
                    httpx.Client(timeout=60, trust_env=False) as client,
                    client.stream("POST", url, json=body, headers=headers) as response,
                ):
                    for _ in response.iter_bytes():
                        started.set()

            thread = threading.Thread(target=stream)
            thread.start()
            assert started.wait(20)
            assert add_price(manager, "4.00").json()["version"] == 3
            plain = json_script(answer(used=usage(10, 1_000)))
            upstream.plan(plain)

            def next_version() -> int:
                assert serves(gateway, secret) == (200, "")
                items = manager.call("get", "usage/").json()["items"]
                return max((row["price_version"] for row in items), default=0)

            wait_until(lambda: next_version() == 3, SECONDS_TO_TAKE_EFFECT, "new price")
            assert thread.is_alive(), "the stream outlived the change"
            thread.join(30)

            def streamed() -> list[dict[str, Any]]:
                items = manager.call("get", "usage/").json()["items"]
                return [row for row in items if row["is_stream"]]

            (row,) = wait_until(streamed, 10, "the stream's row")
            assert (row["price_version"], row["spend_usd"]) == (2, "0.002")
            newest = manager.call("get", "usage/").json()["items"][0]
            assert (newest["price_version"], newest["spend_usd"]) == (3, "0.004")
