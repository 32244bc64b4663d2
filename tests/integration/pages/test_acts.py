"""Pages: acts need their words, are shown once, and are refused at their field."""

import re

import pytest

from tests.pages import client_of, plain_text

pytestmark = pytest.mark.django_db


def test_a_new_key_is_shown_once_with_its_command(world):
    client = client_of(world, "tina")
    form = client.get("/t/acme/keys/issue/").text
    once = re.search(r'name="idempotency_key" value="([^"]+)"', form).group(1)
    fields = {
        "name": "ci",
        "project_id": re.search(r'<option value="(\d+)"', form).group(1),
        "allowed_models": "*",
        "work_class": "",
        "expires_at": "",
        "idempotency_key": once,
    }
    first = client.post("/t/acme/keys/issue/", fields).text
    secret = re.search(r'id="secret">(hr_\w{8}_[\w-]+)<', first).group(1)
    assert f"Bearer {secret}" in first
    assert secret in client.post("/t/acme/keys/issue/", fields).text  # sent twice: the same key
    listed = client.get("/t/acme/keys/").text
    assert secret not in listed
    assert listed.count(">ci<") == 1


def test_revoking_needs_the_last_characters_of_the_key(world):
    client = client_of(world, "ana")
    key = world.keys["acme"]
    path = f"/tenants/acme/keys/{key.id}/revoke/"
    assert client.post(path, {"confirm": "nope", "reason": "leaked"}).status_code == 422
    assert "● live" in plain_text(client.get("/tenants/acme/keys/").text)
    done = client.post(path, {"confirm": key.prefix[-4:], "reason": "leaked"})
    assert done.status_code == 302
    assert "revoked" in plain_text(client.get("/tenants/acme/keys/").text)


def test_publishing_shows_findings_by_path_and_keeps_what_was_typed(world):
    client = client_of(world, "ana")
    path = "/policies/main/edit/"
    broken = '{"schema_version": 1, "name": "main", "models": {"nope": {"targets": []}}}'
    refused = client.post(path, {"document": broken, "act": "check", "base": "2"})
    assert refused.status_code == 422
    assert "models.nope" in refused.text
    good = (
        '{"schema_version": 1, "name": "main", "models": '
        '{"llama-8b": {"targets": [{"pool": "p-a", "weight": 7}]}}}'
    )
    fields = {"document": good, "act": "publish", "base": "2", "note": "seven"}
    fields["tag"] = world.draft
    assert "unrehearsed" not in client.get(path).text  # a word that nothing backs
    assert "main@3" not in client.get("/policies/main/").text
    assert client.post(path, fields).status_code == 302
    assert "main@3" in client.get("/policies/main/").text
    stale = client.post(path, {**fields, "tag": ""})
    assert stale.status_code == 409
    assert "weight&quot;: 7" in stale.text  # nothing typed is lost
    back = "/policies/main/versions/1/roll-back/"
    assert client.post(back, {"confirm": "main", "base": "3", "note": ""}).status_code == 302
    assert "main@4" in client.get("/policies/main/").text


@pytest.mark.parametrize("text", ['{"a": 1, "a": 2}', "{", "[]", '{"a": NaN}', "[" * 5000])
def test_a_document_that_is_not_one_is_refused_at_its_field(world, text):
    answer = client_of(world, "ana").post(
        "/policies/main/edit/", {"document": text, "act": "check", "base": "2"}
    )
    assert answer.status_code == 422
    assert 'id="id_document_error"' in answer.text
