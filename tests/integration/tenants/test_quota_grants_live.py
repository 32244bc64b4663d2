"""From a refused call to the grant that admits it, and back at its end: real gateway and ledger."""

from contextlib import closing
from datetime import timedelta
from typing import Any
from urllib.parse import urlencode

import pytest
from django.utils import timezone

from tenants.models import QuotaRequest
from tenants.requests.services import end_due_grants
from tests.ledgering import make_writer
from tests.managing import SECONDS_TO_TAKE_EFFECT, Manager, managed_gateway, managed_world
from tests.stack import wait_until
from tests.upstream import UpstreamThread, answer, json_script

pytestmark = pytest.mark.django_db(transaction=True)

OUTPUT = {"scope": "tenant_model", "dimension": "out", "window": "m", "model": "llama-8b"}


def test_the_refused_call_is_admitted_after_the_grant_and_refused_after_its_end(store, tmp_path):
    with UpstreamThread() as upstream, closing(make_writer()) as writer:
        writer.cycle()  # opens the counters
        world = managed_world(upstream, "acme")
        upstream.plan(json_script(answer()))
        ana, tina = Manager(world, "ana"), Manager(world, "tina")
        assert ana.call("put", "tenants/acme/limits/", {**OUTPUT, "amount": 10}).status_code == 200
        with managed_gateway(world, store, tmp_path / "state", has_ledger=True) as gateway:

            def asked() -> Any:
                return gateway.chat(world.keys["acme"].secret, model="llama-8b", max_tokens=50)

            refused = asked()
            assert refused.status_code == 429
            why = look_up(writer, tina, refused.headers["x-request-id"])
            assert (why["code"], why["limit"], why["scope"]) == (
                "rate_limited", "output_tokens_per_minute", "tenant_model",
            )  # fmt: skip
            assert (why["model"], why["key_id"]) == ("llama-8b", world.keys["acme"].id)
            assert "ask for more" in why["next_step"]
            told_ms = refused.headers.get("retry-after-ms")
            assert why["retry_after_ms"] == (None if told_ms is None else int(told_ms))

            path = "tenants/acme/quota-requests/"
            made = tina.call("post", path, {**OUTPUT, "amount": 9_000, "reason": "launch"}).json()
            end = (timezone.now() + timedelta(hours=1)).isoformat()
            granted = ana.call(
                "post", f"quota-requests/{made['id']}/grant/", {"amount": 5_000, "ends_at": end}
            )
            assert granted.status_code == 200, granted.content
            wait_until(lambda: asked().status_code == 200, SECONDS_TO_TAKE_EFFECT, "admission")

            past = timezone.now() - timedelta(seconds=1)
            QuotaRequest.objects.update(ends_at=past)
            assert end_due_grants() == 1
            ana.call("get", "quota-requests/")  # stands in for the worker: pushes what was queued
            wait_until(lambda: asked().status_code == 429, SECONDS_TO_TAKE_EFFECT, "the old limit")


def look_up(writer: Any, manager: Manager, request_id: str) -> dict[str, Any]:
    """The refusal, once its row has reached the ledger."""

    def found() -> Any:
        writer.cycle()
        got = manager.call("get", f"tenants/acme/refusals/{request_id}/")
        return got.json() if got.status_code == 200 else None

    listed = wait_until(found, SECONDS_TO_TAKE_EFFECT, "the refusal's row")
    query = urlencode({"code": listed["code"]})
    (first,) = manager.call("get", f"tenants/acme/refusals/?{query}").json()["items"]
    assert first["request_id"] == request_id
    return listed
