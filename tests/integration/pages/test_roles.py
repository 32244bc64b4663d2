"""Pages: what each role gets, and what it never sees."""

import re

import pytest
from django.test import Client

from console.web.csp import CONTENT_SECURITY_POLICY
from tests.pages import EVERYONE_SIGNED_IN, FORMS, LISTS, OTHERS, client_of, expected, path_of

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize("name", EVERYONE_SIGNED_IN)
def test_each_page_answers_each_role_as_designed(world, name):
    client = client_of(world, name)
    answers = {path: client.get(path_of(world, path)) for path in (*LISTS, *OTHERS, *FORMS)}
    found = {path: answer.status_code for path, answer in answers.items()}
    assert found == {path: expected(name, path) for path in answers}
    for path, answer in answers.items():
        assert answer.headers["Content-Security-Policy"] == CONTENT_SECURITY_POLICY, path
        assert answer.headers["Cache-Control"] == "no-store", path
        assert re.fullmatch(r"[0-9a-f]{16}", answer.headers["X-Request-ID"]), path


def test_without_a_session_every_page_leads_to_sign_in_and_back(world):
    for path in (*LISTS, *OTHERS, *FORMS):
        answer = Client().get(path_of(world, path))
        assert answer.status_code == 302, path
        assert answer.headers["Location"].startswith("/sign-in/?next=/"), path


def test_another_tenants_object_and_none_at_all_look_the_same(world):
    client = client_of(world, "tina")
    bodies = set()
    for slug in ("globex", "no-such"):
        for page in (
            "",
            "keys/",
            "usage/",
            "usage.csv",
            "limits/requests/",
            f"keys/{world.keys['globex'].id}/rotate/",
        ):
            answer = client.get(f"/t/{slug}/{page}")
            assert answer.status_code == 404, (slug, page)
            text = re.sub(r"[0-9a-f]{16}|csrfmiddlewaretoken\S+ value=\S+", "", answer.text)
            bodies.add(re.sub(r'"X-CSRFToken": "\w+"|/t/\S+"', "", text))
    assert len(bodies) == 1


def test_a_key_of_another_tenant_is_not_found_below_the_own_one(world):
    key_id = world.keys["globex"].id
    assert client_of(world, "tina").get(f"/t/acme/keys/{key_id}/revoke/").status_code == 404


def test_members_see_neither_pools_nor_other_tenants(world):
    client = client_of(world, "tina")
    for page in ("", "keys/", "usage/", "tasks/", f"tasks/{world.task_id}/"):
        text = client.get(f"/t/acme/{page}").text
        assert "p-a" not in text
        assert "eu-a-8b-" not in text
        assert "lobex" not in text


def test_who_may_not_set_limits_of_the_fleet_is_offered_no_link_to_them(world):
    for path, link in (
        ("/fleet/", 'href="/fleet/limits/"'),
        ("/fleet/pools/p-a/", 'href="/fleet/pools/p-a/limits/"'),
    ):
        assert link not in client_of(world, "aud").get(path).text
        assert link in client_of(world, "ola").get(path).text
