"""REST: whatever is wrong with a request, the answer is a problem body and never a 500."""

import json

import pytest
from django.core.exceptions import (
    BadRequest,
    RequestDataTooBig,
    SuspiciousOperation,
    TooManyFieldsSent,
    TooManyFilesSent,
)
from django.http import UnreadablePostError
from django.http.multipartparser import MultiPartParserError
from django.test import Client

from console.accounts.services import issue_token
from console.models import ApiToken
from tests import factories
from tests.factories import ACTOR, World

pytestmark = pytest.mark.django_db

PROBLEM = {"code", "title", "status", "field", "hint", "request_id"}
JSON = "application/json"


@pytest.fixture
def headers(store) -> dict[str, str]:
    world = World()
    factories.make_tenant(world, "acme")
    factories.make_people(world)
    secret = issue_token(user_id=world.people["ada"].pk, name="t", actor=ACTOR).secret
    return {"Authorization": f"Bearer {secret}"}


def problem_of(answer, status: int) -> dict:
    assert answer.status_code == status, answer.content[:300]
    assert answer.headers["Content-Type"].startswith(JSON)
    body = answer.json()
    assert set(body) >= PROBLEM
    assert body["status"] == status
    assert body["request_id"] == answer.headers["X-Request-ID"]
    return body


@pytest.mark.parametrize("size", [600_000, 5_000_000])
@pytest.mark.parametrize("kind", [JSON, "application/x-www-form-urlencoded"])
def test_a_body_that_is_too_large_is_413(headers, size, kind):
    raw = json.dumps({"slug": "big", "name": "x" * size})
    answer = Client().post("/api/v1/tenants/", raw, content_type=kind, headers=headers)
    if kind != JSON:
        problem_of(answer, 415)
        return
    assert problem_of(answer, 413)["code"] == "too_large"


@pytest.mark.parametrize("kind", [JSON, "application/x-www-form-urlencoded"])
def test_a_large_body_of_a_session_is_refused_too(headers, kind):
    client = Client(enforce_csrf_checks=True)
    client.force_login(ApiToken.objects.get().user)
    raw = json.dumps({"slug": "big", "name": "x" * 5_000_000})
    token = client.get("/").cookies["headrace_csrf"].value
    answer = client.post("/api/v1/tenants/", raw, content_type=kind, headers={"X-CSRFToken": token})
    problem_of(answer, 413 if kind == JSON else 415)


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (RequestDataTooBig("x"), 413),
        (TooManyFieldsSent("x"), 400),
        (TooManyFilesSent("x"), 400),
        (SuspiciousOperation("x"), 400),
        (BadRequest("x"), 400),
        (UnreadablePostError("x"), 400),
        (MultiPartParserError("x"), 400),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_django_raises_about_a_request_is_a_refusal(headers, monkeypatch, error, status):
    def read(*args: object, **kwargs: object) -> None:
        raise error

    monkeypatch.setattr("console.rest.requests.StrictJSONParser.parse", read)
    answer = Client().post("/api/v1/tenants/", "{}", content_type=JSON, headers=headers)
    assert problem_of(answer, status)["code"] != "internal"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a\x00b", "U+0000"),
        ("a\ud800b", "U+D800"),
        ("\udc00", "U+DC00"),
        ("\x1b[31mred", "U+001B"),
        ("abc\u202egnp.exe", "U+202E"),
        ("\u2066x", "U+2066"),
        ("\x85", "U+0085"),
    ],
    ids=["nul", "high", "low", "escape", "override", "isolate", "c1"],
)
@pytest.mark.parametrize("field", ["name", "allowed_models", "new"])
def test_a_character_that_no_text_may_hold_is_refused_wherever_it_stands(
    headers, text, said, field
):
    body = {"slug": "s", "name": "n", "allowed_models": ["m"]}
    if field == "new":
        body[text] = 1
    else:
        body[field] = [text] if field == "allowed_models" else text
    answer = Client().post("/api/v1/tenants/", json.dumps(body), JSON, headers=headers)
    told = problem_of(answer, 400)
    assert (told["field"], said in told["title"]) == ("" if field == "new" else field, True)
    document = {"document": {"name": "main", "note": text, "models": {text: []}}}
    answer = Client().post("/api/v1/policy-check/", json.dumps(document), JSON, headers=headers)
    told = problem_of(answer, 400)
    assert (told["field"], said in told["title"]) == ("document.note", True)
    raw = json.dumps({**body, "slug": text}, ensure_ascii=False).encode("utf-8", "surrogatepass")
    problem_of(Client().post("/api/v1/tenants/", raw, JSON, headers=headers), 400)


def test_line_ends_and_tabs_are_plain_characters(headers):
    body = {"slug": "lines", "name": "one\n\ttwo \u05d0\u200d"}
    answer = Client().post("/api/v1/tenants/", json.dumps(body), JSON, headers=headers)
    assert (answer.status_code, answer.json()["name"]) == (201, body["name"])


def test_a_pair_of_surrogates_is_a_plain_character(headers):
    body = '{"slug": "smile", "name": "\\ud83d\\ude00"}'
    answer = Client().post("/api/v1/tenants/", body, JSON, headers=headers)
    assert answer.status_code == 201
    assert answer.json()["name"] == "\N{GRINNING FACE}"


@pytest.mark.parametrize(
    "path",
    [
        "tenants/?after=%00",
        "usage/?after=%00",
        "usage/?tenant=%00",
        "audit/?after=%00",
        "prices/?model=%00",
        "policies/%00/",
        "pools/%00/",
        "tenants/acme/keys/99999999999999999999999/",
        "jobs/99999999999999999999999/",
    ],
)
def test_an_address_that_names_nothing_possible_is_refused(headers, path):
    answer = Client().get(f"/api/v1/{path}", headers=headers)
    assert answer.status_code in (400, 404, 422), (path, answer.content)
    problem_of(answer, answer.status_code)


@pytest.mark.parametrize(
    "path", ["/api/", "/api/v2/", "/api/v1/", "/api/v1/usage/not-uuid/", "/api/v1/nothing/at/all/"]
)
@pytest.mark.parametrize("method", ["get", "post", "delete"])
def test_an_unknown_address_below_api_is_a_problem_body(headers, path, method):
    for sent in (headers, {}):
        body = problem_of(getattr(Client(), method)(path, headers=sent), 404)
        assert body["code"] == "not_found"
    slashless = getattr(Client(), method)("/api/v1/keys", headers=headers)
    problem_of(slashless, 404)


def test_a_missing_slash_leads_to_the_endpoint(headers):
    answer = Client().get("/api/v1/tenants", headers=headers)
    assert answer.status_code == 301
    assert answer.headers["Location"] == "/api/v1/tenants/"


def test_a_wrong_host_is_refused_in_the_callers_form(headers):
    problem_of(Client().get("/api/v1/me/", headers={**headers, "Host": "evil.example"}), 400)
    page = Client().get("/sign-in/", headers={"Host": "evil.example"})
    assert page.status_code == 400


def test_pages_keep_their_own_not_found(headers):
    answer = Client().get("/no-such-page/")
    assert answer.status_code == 404
    assert "<html" in answer.text
