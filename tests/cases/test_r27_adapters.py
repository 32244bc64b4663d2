"""R27: adapter requests go only where the adapter is loaded."""

import contextlib
import time
from pathlib import Path

import httpx
import msgspec
import redis

from routing.contracts.snapshot import Target
from tests.gatewaying import error_of, next_status, rows, serving
from tests.stack import ACME_KEY, GatewayProcess, model, wait_until
from tests.upstream import Seen, Step, UpstreamThread, answer, json_script

ADAPTER = "sql-lora-3"  # as engines call it
SQL = msgspec.structs.replace(model("alpha-8b-sql"), targets=(Target("p1", adapter=ADAPTER),))
MODELS = {"alpha-8b": model("alpha-8b"), "alpha-8b-sql": SQL}


def engine(stack: contextlib.ExitStack) -> UpstreamThread:
    """Answers for the models that its page lists, 404 for any other."""
    server = stack.enter_context(UpstreamThread())

    def choose(seen: Seen) -> list[Step]:
        name = seen.json["model"]
        if name in server.pages.models:
            return json_script(answer() | {"model": name})
        return json_script({"error": {"message": f"The model `{name}` does not exist."}}, 404)

    server.choose = choose
    return server


def listed(gateway: GatewayProcess) -> list[str]:
    headers = {"authorization": f"Bearer {ACME_KEY}"}
    found = httpx.get(f"{gateway.url}/v1/models", headers=headers, trust_env=False).json()
    return [row["id"] for row in found["data"]]


def test_an_adapter_is_served_where_it_is_loaded_and_nowhere_else(
    tmp_path: Path, store: "redis.Redis[bytes]"
) -> None:
    with contextlib.ExitStack() as stack:
        u1, u2, u3 = fleet = [engine(stack) for _ in range(3)]
        u2.pages.models = ["alpha-8b", ADAPTER]
        gateway = stack.enter_context(serving(tmp_path, *fleet, models=MODELS))
        wait_until(lambda: "alpha-8b-sql" in listed(gateway), 10, "the adapter is listed")
        for _ in range(20):
            response = gateway.chat(model="alpha-8b-sql")
            assert response.status_code == 200, response.text
        assert [seen.json["model"] for seen in u2.completions] == [ADAPTER] * 20
        assert not u1.completions
        assert not u3.completions
        assert {row.model for row in rows(store, 20)} == {"alpha-8b-sql"}

        u2.pages.models = ["alpha-8b"]
        since = time.monotonic()
        refused = gateway.chat(model="alpha-8b-sql")
        assert time.monotonic() - since < 1
        assert (refused.status_code, error_of(refused.json())) == (503, "model_unavailable")
        assert "alpha-8b-sql" not in listed(gateway)
        for _ in range(12):
            assert gateway.chat(model="alpha-8b").status_code == 200
        asked = [seen.json["model"] for one in fleet for seen in one.completions]
        assert asked.count(ADAPTER) <= 21, "only the one that had it was asked"
        assert asked.count("alpha-8b") == 12, "the base answers for itself alone"
        assert any(seen.json["model"] == "alpha-8b" for seen in u2.completions)
        assert not next_status(store).open_breakers

        u3.pages.models = ["alpha-8b", ADAPTER]
        wait_until(lambda: "alpha-8b-sql" in listed(gateway), 30, "loaded elsewhere")
        assert gateway.chat(model="alpha-8b-sql").status_code == 200
        assert u3.completions[-1].json["model"] == ADAPTER


def test_an_adapter_that_fails_takes_no_replica_from_its_base(
    tmp_path: Path, store: "redis.Redis[bytes]"
) -> None:
    with contextlib.ExitStack() as stack:
        only = engine(stack)
        only.pages.models = ["alpha-8b", ADAPTER]
        fails = json_script({"error": {"message": "out of slots"}}, 500)
        good = only.choose
        assert good is not None
        only.choose = lambda seen: fails if seen.json["model"] == ADAPTER else good(seen)
        gateway = stack.enter_context(serving(tmp_path, only, models=MODELS))
        wait_until(lambda: "alpha-8b-sql" in listed(gateway), 10, "the adapter is listed")
        for _ in range(6):
            assert gateway.chat(model="alpha-8b-sql").status_code == 502
        assert gateway.chat(model="alpha-8b").status_code == 200
        assert not next_status(store).open_breakers
