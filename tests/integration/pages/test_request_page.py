"""The page of one request: what became of it, for whom, and what is not shown."""

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from routing.policies.services import publish
from tests import factories
from tests.pages import OTHERS, client_of, plain_text

pytestmark = pytest.mark.django_db
HOOKS = {
    "hook.pii.before.pass": 4_200,
    "hook.tone.after.refuse": 900,
    "hook.slow.before.skipped": 0,
}


def test_hooks_fallback_and_attempts_of_a_request_are_on_its_page(world):
    (served,) = factories.make_usage(
        world, "acme", 1, hops_us=HOOKS, attempts=3, model="llama-70b", policy="main@1"
    )
    page = client_of(world, "aud").get(f"/requests/{served}/").text
    words = plain_text(page)
    assert "llama-70b ▲ fallback in place of llama-8b" in words
    assert "3: 2 failed or refused before any output" in words
    assert "pii before ● pass 4.2 slow before ◌ skipped — tone after ■ refuse 0.9" in words
    assert 'href="/fleet/pools/eu-a-8b/"' in page
    assert 'href="/policies/main/versions/1/"' in page
    assert served in page


def test_an_alias_is_no_fallback(world):
    targets = [{"pool": "p-a"}]
    models = {"llama-8b": {"targets": targets, "aliases": ["fast"]}}
    document = {"schema_version": 1, "name": "main", "models": models}
    publish(policy="main", document=document, base=2, note="", actor=factories.ACTOR)
    seen = {}
    for asked, served_by in (("fast", "llama-8b"), ("fast", "llama-70b"), ("llama-8b", "llama-8b")):
        (served,) = factories.make_usage(
            world, "acme", 1, model_asked=asked, model=served_by, policy="main@3"
        )
        seen[asked, served_by] = plain_text(
            client_of(world, "ana").get(f"/requests/{served}/").text
        )
    assert "llama-8b asked for by its alias fast" in seen["fast", "llama-8b"]
    by_fallback = "fallback in place of llama-8b, asked for as fast"
    assert by_fallback in seen["fast", "llama-70b"]
    assert "llama-8b as asked for" in seen["llama-8b", "llama-8b"]


def test_a_policy_that_is_gone_leaves_the_name_that_was_asked_for(world):
    (served,) = factories.make_usage(world, "acme", 1, model_asked="fast", policy="other@7")
    words = plain_text(client_of(world, "ana").get(f"/requests/{served}/").text)
    assert "llama-8b asked for as fast" in words


def test_a_tenant_reads_its_own_request_without_the_fleet(world):
    (served,) = factories.make_usage(
        world, "acme", 1, hops_us=HOOKS, upstream_request_id="up-1", gateway="gate-7"
    )
    tina = client_of(world, "tina")
    words = plain_text(tina.get(f"/t/acme/requests/{served}/").text)
    assert "tone after ■ refuse" in words
    for hidden in ("eu-a-8b", "gate-7", "up-1", "Replica"):
        assert hidden not in words
    assert tina.get(f"/requests/{served}/").status_code == 403
    assert f'href="/t/acme/requests/{served}/"' in tina.get("/t/acme/usage/").text


def test_another_tenants_request_is_not_found(world):
    (other,) = factories.make_usage(world, "globex", 1)
    tina = client_of(world, "tina")
    assert tina.get(f"/t/acme/requests/{other}/").status_code == 404
    assert tina.get(f"/t/globex/requests/{other}/").status_code == 404
    assert other in tina.get(f"/t/acme/requests/?id={other}").text  # asked for, not found
    assert "No call of this tenant" in tina.get(f"/t/acme/requests/?id={other}").text


def test_a_refused_request_says_the_limit_and_the_next_step(world):
    refused = world.refusals["acme"][0]
    words = plain_text(client_of(world, "tina").get(f"/t/acme/requests/{refused}/").text)
    assert "Refused: 429 rate_limited" in words
    assert "input_tokens_per_minute of tenant" in words
    assert "after 21,000 ms" in words
    assert "it cost nothing" in words


def test_an_id_leads_to_its_request_and_an_unknown_one_says_what_to_do(world):
    (served,) = factories.make_usage(world, "acme", 1)
    refused = world.refusals["acme"][0]
    ana, tina = client_of(world, "ana"), client_of(world, "tina")
    for wanted in (served, refused, f" {served.upper()} "):
        answer = ana.get("/requests/", {"id": wanted})
        assert answer.headers["Location"] == f"/requests/{wanted.strip().lower()}/"
        answer = tina.get("/t/acme/requests/", {"id": wanted})
        assert answer.headers["Location"] == f"/t/acme/requests/{wanted.strip().lower()}/"
    for wanted in ("none", "00000000-0000-0000-0000-000000000000"):
        answer = ana.get("/requests/", {"id": wanted})
        assert answer.status_code == 200
        assert f"No request {wanted}." in plain_text(answer.text)


def test_lists_of_requests_lead_to_their_pages(world):
    ana = client_of(world, "ana")
    usage = ana.get("/usage/?tenant=acme").text
    assert all(f'href="/requests/{one}/"' in usage for one in world.served["acme"])
    refusals = ana.get("/tenants/acme/requests/").text
    assert all(f'href="/requests/{one}/"' in refusals for one in world.refusals["acme"])
    assert 'href="/requests/' in ana.get(f"/tasks/{world.task_id}/").text
    assert "/requests/{served}/" in OTHERS  # its queries are counted and axe reads it


def test_a_fallback_costs_one_query_more(world):
    ana = client_of(world, "ana")
    counts = []
    for fields in ({}, {"model": "llama-70b", "hops_us": HOOKS}):
        (served,) = factories.make_usage(world, "acme", 1, **fields)
        with CaptureQueriesContext(connection) as captured:
            assert ana.get(f"/requests/{served}/").status_code == 200
        counts.append(len(captured))
    assert counts[1] == counts[0] + 1 <= 15
