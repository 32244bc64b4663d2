"""The palette's answers: what each person finds, and what it costs."""

import re
from unittest.mock import patch

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from console.pages import search
from console.web.pace import Pace
from tests import factories
from tests.pages import client_of

pytestmark = pytest.mark.django_db


def found(world: factories.World, name: str, text: str) -> dict[str, list[str]]:
    """Addresses by kind, as the palette reads them."""
    client = client_of(world, name)
    answer = client.get("/search/", {"q": text}, headers={"HX-Request": "true"})
    assert answer.status_code == 200
    assert "<html" not in answer.text
    sections = re.findall(r'<section aria-label="(\w+)">(.*?)</section>', answer.text, re.DOTALL)
    groups = {label: re.findall(r'href="([^"]+)"', body) for label, body in sections}
    assert f'data-count="{sum(map(len, groups.values()))}"' in answer.text
    return groups


def test_an_operator_finds_each_kind(world):
    key = world.keys["globex"]
    assert found(world, "ana", "globex")["Tenants"] == ["/tenants/globex/"]
    assert found(world, "ana", "GLOB")["Tenants"] == ["/tenants/globex/"]
    by_key = f"/tenants/globex/keys/?after={key.id + 1}"
    for text in (key.prefix, f"hr_{key.prefix}", key.prefix[:3], key.secret):
        assert by_key in found(world, "ana", text)["Keys"], text
    assert key.prefix in client_of(world, "ana").get(by_key).text
    assert found(world, "ana", "p-a")["Pools"] == ["/fleet/pools/p-a/"]
    policies = found(world, "ana", "main")["Policies"]
    assert policies == ["/policies/main/", "/policies/main/edit/"]
    assert "/capacity/forecast/" in found(world, "ana", "fore")["Pages"]
    assert found(world, "ana", "bill")["Pages"] == ["/why-bill/"]
    assert found(world, "ana", "override")["Acts"] == ["/new-override/"]
    assert found(world, "ada", "vic")["People"] == [f"/people/{world.people['vic'].pk}/"]


def test_a_request_is_found_by_its_id_whether_served_or_refused(world):
    served = factories.make_usage(world, "globex", 1)[0]
    refused = world.refusals["acme"][0]
    assert found(world, "aud", served) == {"Request": [f"/requests/{served}/"]}
    assert found(world, "tina", refused) == {"Request": [f"/t/acme/requests/{refused}/"]}
    assert found(world, "tina", served) == {}
    assert found(world, "ana", served[:-1] + ("0" if served[-1] != "0" else "1")) == {}


def test_nobody_finds_what_it_may_not_open(world):
    for text in ("globex", world.keys["globex"].prefix, "p-a", "main", "ada", "override", "audit"):
        assert found(world, "tina", text) == {}, text
    assert found(world, "tina", "acme")["Tenants"] == ["/t/acme/"]
    own = {"/t/acme/keys/issue/", "/t/acme/members/invite/", "/t/acme/limits/requests/ask/"}
    acts = {
        url for text in ("issue", "invite", "ask") for url in found(world, "tina", text)["Acts"]
    }
    assert own <= acts
    for text in ("invite", "issue a key", "ask for"):
        assert "Acts" not in found(world, "vic", text), text
    assert "Policies" in found(world, "aud", "main")
    assert found(world, "aud", "main")["Policies"] == ["/policies/main/"]
    assert found(world, "nobody", "acme") == {}
    everything = {
        url for text in "aeiou" for urls in found(world, "vic", text).values() for url in urls
    }
    assert everything
    client = client_of(world, "vic")
    assert {url for url in everything if client.get(url).status_code != 200} == set()


def test_without_a_text_it_lists_the_pages_of_the_navigation(world):
    groups = found(world, "ola", "")
    assert list(groups) == ["Now", "Traffic", "Tenants", "Fleet", "Capacity", "System"]
    assert found(world, "tina", "")["acme"][0] == "/t/acme/"
    page = client_of(world, "ola").get("/search/?q=glob")
    assert "<html" in page.text
    assert 'href="/tenants/globex/"' in page.text


def test_it_is_few_queries_however_many_tenants_keys_and_pools_there_are(world):
    counts = []
    for more in (0, 50):
        for number in range(more):
            factories.make_tenant(world, f"globex-{number:02d}")
        for name, text in (("ada", "glob"), ("tina", "acme"), ("ada", world.refusals["acme"][0])):
            client = client_of(world, name)
            with CaptureQueriesContext(connection) as captured:
                client.get("/search/", {"q": text}, headers={"HX-Request": "true"})
            counts.append(len(captured))
    assert counts[:3] == counts[3:]
    assert max(counts) <= search.MOST_QUERIES
    assert len(found(world, "ada", "glob")["Tenants"]) == search.SHOWN


def test_who_asks_too_fast_is_told_when_to_go_on(world):
    client = client_of(world, "ana")
    with patch.object(search, "PACE", Pace(most=2, window_s=600)):
        answers = [client.get("/search/?q=x", headers={"HX-Request": "true"}) for _ in range(3)]
        assert [answer.status_code for answer in answers] == [200, 200, 429]
        assert re.search(r"Go on in \d+ s", answers[2].text)
        assert client_of(world, "ola").get("/search/?q=x").status_code == 200


def test_what_is_typed_is_text(world):
    odd = '<img src=x onerror=alert(1)>"'
    answer = client_of(world, "ana").get("/search/", {"q": odd})
    assert answer.status_code == 200
    assert "<img" not in answer.text
