"""REST: a write that is repeated with its `Idempotency-Key` is answered again and done once."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from threading import Barrier
from typing import Any

import pytest
from django.db import connection, connections, transaction
from django.db.models import F
from django.test import Client
from drf_spectacular.generators import SchemaGenerator

from console.models import ApiToken, AuditEvent, Job, KeptAnswer, User
from console.rest import idempotency
from tests import factories
from tests.endpoints import ENDPOINTS, NEW_USER, PAUSE, Caller
from tests.factories import World

KEY = {"Idempotency-Key": "first-act-of-ada"}
OTHER_KEY = {"Idempotency-Key": "second-act-of-ada"}
READS = {"policies_check", "capacity_lab"}
READ_PATHS = {"policy-check/", "capacity-lab/"}
BY_ETAG = {"policies_publish", "policies_apply", "policies_roll_back"} | {
    f"policy_draft_{act}" for act in ("save", "discard", "publish")
}


@pytest.mark.django_db
def test_every_write_is_done_once_for_its_key(world):
    caller = Caller(world, "ada")
    writes = [row for row in ENDPOINTS if row[0] != "get" and row[1] not in READ_PATHS]
    assert len(writes) > 50
    for method, path, body, _ in writes:
        with connection.cursor() as cursor:
            cursor.execute("SAVEPOINT before_act")
        tag = {"If-Match": world.draft} if "draft/" in path else {}
        first = caller.call(method, path, body, **KEY, **tag)
        assert first.status_code < 300, (method, path, first.content)
        told, trail, jobs = first.content, AuditEvent.objects.count(), Job.objects.count()
        again = caller.call(method, path, body, **KEY, **tag)
        assert (again.status_code, again.content) == (first.status_code, told), path
        assert again.headers.get("ETag") == first.headers.get("ETag")
        assert again.headers[idempotency.REPLAYED_HEADER] == "true"
        assert idempotency.REPLAYED_HEADER not in first.headers
        assert (AuditEvent.objects.count(), Job.objects.count()) == (trail, jobs), path
        with connection.cursor() as cursor:
            cursor.execute("ROLLBACK TO SAVEPOINT before_act")


def test_the_document_names_the_header_of_every_write():
    document = SchemaGenerator().get_schema(request=None, public=True)
    named: dict[str, set[str]] = {"Idempotency-Key": set(), "If-Match": set()}
    writes = set()
    for path in document["paths"].values():
        for method, operation in path.items():
            if method != "get" and operation["operationId"] not in READS:
                writes.add(operation["operationId"])
            for one in operation.get("parameters", ()):
                if one["in"] == "header":
                    named[one["name"]].add(operation["operationId"])
    assert named["Idempotency-Key"] == writes
    assert named["If-Match"] == BY_ETAG


@pytest.mark.django_db
def test_a_key_names_one_act_of_one_person(world):
    caller, ola = Caller(world, "ada"), Caller(world, "ola")
    path, wanted = "tenants/", {"slug": "new", "name": "New"}
    assert caller.call("post", path, wanted, **KEY).status_code == 201
    other = caller.call("post", path, {**wanted, "slug": "newer"}, **KEY)
    assert (other.status_code, other.json()["code"]) == (409, "idempotency_conflict")
    assert other.json()["field"] == "Idempotency-Key"
    elsewhere = caller.call("post", "tenants/acme/suspend/", {"reason": "x"}, **KEY)
    assert elsewhere.status_code == 409
    assert ola.call("post", path, {**wanted, "slug": "newer"}, **KEY).status_code == 201
    assert caller.call("post", path, wanted, **OTHER_KEY).status_code == 409  # the slug is taken
    bad = caller.call("post", path, wanted, **{"Idempotency-Key": "short"})
    assert bad.status_code == 400


@pytest.mark.django_db
def test_a_refused_call_may_be_mended_under_its_key(world):
    caller = Caller(world, "ada")
    refused = caller.call("post", "users/", {**NEW_USER, "password": "short"}, **KEY)
    assert refused.status_code == 422
    assert not KeptAnswer.objects.exists()
    assert caller.call("post", "users/", NEW_USER, **KEY).status_code == 201


@pytest.mark.django_db
def test_an_unexpected_error_keeps_neither_the_act_nor_the_key(world, monkeypatch):
    caller = Caller(world, "ada")
    with monkeypatch.context() as patch:  # the act is done, its answer cannot be made
        patch.setattr(idempotency, "_sealed", lambda *_: 1 / 0)
        assert caller.call("post", "users/", NEW_USER, **KEY).status_code == 500
    assert not User.objects.filter(username="new").exists()
    assert caller.call("post", "users/", NEW_USER, **KEY).status_code == 201


@pytest.mark.django_db
def test_a_kept_secret_cannot_be_read_from_its_row(world):
    caller = Caller(world, "vic")
    issued = caller.call("post", "tokens/", {"name": "ci"}, **KEY).json()
    assert caller.call("post", "tokens/", {"name": "ci"}, **KEY).json() == issued
    assert ApiToken.objects.filter(name="ci").count() == 1
    (row,) = KeptAnswer.objects.values()
    kept = b"".join(
        bytes(value) if isinstance(value, bytes | memoryview) else str(value).encode()
        for value in row.values()
    )
    assert issued["secret"].encode() not in kept
    assert KEY["Idempotency-Key"].encode() not in kept


@pytest.mark.django_db
def test_answers_are_forgotten_after_a_day(world):
    caller = Caller(world, "ada")
    first = caller.call("post", "overrides/", PAUSE, **KEY).json()["id"]
    almost = idempotency.KEPT_FOR - timedelta(minutes=1)
    KeptAnswer.objects.update(created_at=F("created_at") - almost)
    assert caller.call("post", "overrides/", PAUSE, **KEY).json()["id"] == first
    KeptAnswer.objects.update(created_at=F("created_at") - timedelta(minutes=2))
    caller.call("delete", f"overrides/{first}/", **OTHER_KEY)
    assert KeptAnswer.objects.count() == 1
    again = caller.call("post", "overrides/", PAUSE, **KEY)
    assert again.json()["id"] > first
    assert idempotency.REPLAYED_HEADER not in again.headers


@pytest.fixture
def ada(transactional_db: None, store: Any) -> World:
    made = World()
    factories.make_tenant(made, "acme")
    factories.make_people(made)
    return made


def make_user(headers: dict[str, str]) -> Any:
    return Client().post(
        "/api/v1/users/", NEW_USER, content_type="application/json", headers=headers
    )


def at_once(count: int, act: Callable[[], Any]) -> list[Any]:
    """What each of so many threads gets that start together."""
    start = Barrier(count)

    def run() -> Any:
        try:
            start.wait(30)
            return act()
        finally:
            connections.close_all()

    with ThreadPoolExecutor(count) as threads:
        return [one.result() for one in [threads.submit(run) for _ in range(count)]]


def test_calls_at_once_with_one_key_do_one_act(ada):
    headers = {"Authorization": f"Bearer {Caller(ada, 'ada').secret}", **KEY}
    answers = at_once(4, lambda: make_user(headers))
    assert [answer.status_code for answer in answers] == [201] * 4
    assert len({answer.content for answer in answers}) == 1
    assert sum(idempotency.REPLAYED_HEADER in answer.headers for answer in answers) == 3


def test_a_call_whose_first_one_does_not_end_is_told_to_come_again(ada):
    headers = {"Authorization": f"Bearer {Caller(ada, 'ada').secret}", **KEY}
    Client().get("/api/v1/me/", headers=headers)  # notes the token's use, once a minute
    with transaction.atomic():
        assert make_user(headers).status_code == 201
        (busy,) = at_once(1, lambda: make_user(headers))
    assert (busy.status_code, busy.json()["code"]) == (409, "idempotency_busy")
