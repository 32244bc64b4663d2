"""R24: aliases, fallbacks, wildcards and empty lists cannot widen what a key may use."""

import httpx
import pytest

from capacity.fleet.services import create_model
from capacity.models import Replica
from console.errors import InvalidInput
from routing.policies.services import publish
from tenants.directory.services import create_tenant
from tenants.keys.services import issue_key
from tenants.prices.services import add_price
from tests import factories
from tests.factories import ACTOR
from tests.managing import managed_gateway, managed_world
from tests.upstream import UpstreamThread, answer, json_script

pytestmark = pytest.mark.django_db(transaction=True)


def test_permission_is_checked_on_the_model_that_answers(store, tmp_path):
    with UpstreamThread() as upstream:
        world = managed_world(upstream, "acme")
        upstream.plan(json_script(answer()))
        create_model(name="beta-70b", context_tokens=8192, actor=ACTOR)
        free = {"input_nanousd": 0, "cached_nanousd": 0, "output_nanousd": 0}
        add_price(model="beta-70b", **free, actor=ACTOR)
        factories.make_pools(world, {"p-beta": 1}, "beta-70b")
        Replica.objects.update(host=upstream.address[0], port=upstream.address[1])
        publish(
            policy="main",
            document={
                "name": "main",
                "models": {
                    "llama-8b": {"aliases": ["chat"], "targets": [{"pool": "p-a"}]},
                    "beta-70b": {"aliases": ["fast"], "targets": [{"pool": "p-beta"}]},
                },
            },
            base=1,
            note="",
            actor=ACTOR,
        )
        tenant_id = world.tenants["acme"]
        one = issue_key(tenant_id=tenant_id, name="one", allowed_models=["llama-8b"], actor=ACTOR)
        none = issue_key(tenant_id=tenant_id, name="none", allowed_models=[], actor=ACTOR)
        with managed_gateway(world, store, tmp_path / "state") as gateway:
            assert gateway.chat(one.secret, model="llama-8b").status_code == 200
            assert gateway.chat(one.secret, model="chat").status_code == 200
            served = len(upstream.requests)
            for secret, model in (
                (one.secret, "fast"),
                (one.secret, "beta-70b"),
                (one.secret, "llama-8b "),
                (one.secret, "ll\u0430ma-8b"),
                (none.secret, "llama-8b"),
                (none.secret, "chat"),
                (none.secret, "*"),
            ):
                refused = gateway.chat(secret, model=model)
                assert refused.status_code in (403, 404), model
            fallback = gateway.chat(one.secret, model="fast", fallbacks=["llama-8b"])
            assert fallback.status_code in (400, 403)
            assert len(upstream.requests) == served

            def listed(secret: str) -> set[str]:
                found = httpx.get(
                    f"{gateway.url}/v1/models",
                    headers={"authorization": f"Bearer {secret}"},
                    trust_env=False,
                )
                return {row["id"] for row in found.json()["data"]}

            assert listed(one.secret) == {"llama-8b", "chat"}
            assert listed(none.secret) == set()


@pytest.mark.parametrize("name", ["alpha/*", "*-8b", "a b", "", "\u0430lpha"])
def test_a_pattern_is_no_name(store, name):
    tenant_id = create_tenant(slug="acme", name="Acme", actor=ACTOR)
    with pytest.raises(InvalidInput) as refused:
        issue_key(tenant_id=tenant_id, name="k", allowed_models=[name], actor=ACTOR)
    assert refused.value.field == "allowed_models"


def test_a_model_that_does_not_exist_is_no_permission(store):
    """Nor is an alias: permission is asked of the model that answers."""
    with pytest.raises(InvalidInput) as refused:
        create_tenant(slug="acme", name="Acme", allowed_models=["no-such-8b"], actor=ACTOR)
    assert (refused.value.field, refused.value.message) == (
        "allowed_models",
        "No such model: 'no-such-8b'.",
    )
