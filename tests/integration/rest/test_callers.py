"""REST: who is let in, and by what."""

import json

import pytest
from django.test import Client
from django.utils import timezone

from console.accounts.services import revoke_token, suspend_user
from console.models import ApiToken
from tests.endpoints import (
    ENDPOINTS,
    Caller,
)
from tests.factories import ACTOR

pytestmark = pytest.mark.django_db


def test_nobody_gets_in_without_signing_in(world):
    caller = Caller(world, "ana")
    for method, path, _, _ in ENDPOINTS:
        answer = getattr(Client(), method)(f"/api/v1/{caller.filled(path)}")
        assert answer.status_code == 401, path
        assert answer.headers["WWW-Authenticate"].startswith("Bearer")
        assert answer.json()["code"] == "not_authenticated"


def test_a_session_needs_the_csrf_token_to_write(world):
    client = Client(enforce_csrf_checks=True)
    client.force_login(world.people["ada"])
    assert client.get("/api/v1/me/").status_code == 200
    asked = {"slug": "x", "name": "X"}
    refused = client.post("/api/v1/tenants/", data=asked, content_type="application/json")
    assert refused.status_code == 403
    client.get("/tenants/")
    token = client.cookies["headrace_csrf"].value
    accepted = client.post(
        "/api/v1/tenants/",
        data=asked,
        content_type="application/json",
        headers={"X-CSRFToken": token},
    )
    assert accepted.status_code == 201


def test_a_token_ends_when_revoked_expired_or_its_person_is_suspended(world):
    caller = Caller(world, "ola")
    user = world.people["ola"]
    assert caller.call("get", "me/").json()["username"] == "ola"
    token = ApiToken.objects.get(user=user)
    assert token.last_used_at is not None
    ApiToken.objects.update(expires_at=timezone.now())
    assert caller.call("get", "me/").status_code == 401
    ApiToken.objects.update(expires_at=None)
    suspend_user(user_id=user.pk, actor=ACTOR, reason="left")
    assert caller.call("get", "me/").status_code == 401
    type(user).objects.update(is_active=True)
    assert caller.call("get", "me/").status_code == 200
    revoke_token(user_id=user.pk, token_id=token.pk, actor=ACTOR)
    assert caller.call("get", "me/").status_code == 401


@pytest.mark.parametrize(
    "header", ["Bearer", "Bearer x", "Basic eDp5", "Bearer hrt_a b", "x" * 999]
)
def test_a_malformed_authorization_is_401(world, header):
    answer = Client().get("/api/v1/me/", headers={"Authorization": header})
    assert answer.status_code == 401


def test_tokens_are_issued_once_and_only_to_oneself(world):
    caller = Caller(world, "vic")
    issued = caller.call("post", "tokens/", {"name": "ci"})
    assert issued.status_code == 201
    listed = caller.call("get", "tokens/").json()
    assert [row["name"] for row in listed] == ["ci", "t-vic"]
    assert issued.json()["secret"] not in json.dumps(listed)
    assert caller.call("post", "tokens/", {"name": "ci"}).status_code == 409
    other = Caller(world, "tina")
    assert other.call("delete", f"tokens/{issued.json()['id']}/").status_code == 404
    assert caller.call("delete", f"tokens/{issued.json()['id']}/").status_code == 204
