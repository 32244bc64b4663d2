"""The lab reveals nothing before a guess, and says what is wrong with an input at its field."""

import re

import pytest
from django.http import HttpResponse
from django.test import Client

from tests import factories

pytestmark = pytest.mark.django_db
OWN = {
    "profile": "8b-bf16-h100", "replicas": "8", "domains": "4", "rate_rps": "120",
    "input_tokens": "800", "output_tokens": "300", "cached_pct": "0", "growth": "1",
    "lost_pct": "0", "retry_pct": "0", "itl_target_ms": "25",
}  # fmt: skip


@pytest.fixture
def client(store) -> Client:
    made = factories.World()
    factories.make_tenant(made, "acme", "Acme")
    factories.make_people(made)
    client = Client()
    client.force_login(made.people["ola"])
    return client


def page_of(response: HttpResponse) -> str:
    """What the page is about: not its frame, whose drawings have figures too."""
    return response.text.partition("<main")[2]


def test_a_question_keeps_its_answer_until_a_guess(client: Client) -> None:
    before = client.get("/capacity/lab/", {"question": "longer-prompts"})
    assert before.status_code == 200
    assert "10.5" not in page_of(before) and "1,050,000" not in page_of(before)
    after = client.get("/capacity/lab/", {"question": "longer-prompts", "guess": "20"})
    answer = page_of(after)
    assert "10.5" in answer and "1,050,000" in answer and "1.9 times too high" in answer


def test_ones_own_numbers_need_a_guess_too(client: Client) -> None:
    start = client.get("/capacity/lab/", OWN)
    assert start.status_code == 200 and 'value="120"' in start.text
    assert "Plan</dt>" not in start.text
    asked = client.get("/capacity/lab/", {**OWN, "guess": ""})
    assert asked.status_code == 422 and "Type a guess first" in asked.text
    assert "Plan</dt>" not in asked.text
    found = client.get("/capacity/lab/", {**OWN, "guess": "3"})
    assert found.status_code == 200
    text = re.sub(r"\s+", " ", found.text)
    assert "<strong>8 replicas</strong>, set by: one domain lost" in text
    assert "96,000 input tok/s" in text and "fits" in text


@pytest.mark.parametrize(
    ("field", "value"),
    [("rate_rps", "-1"), ("rate_rps", "nan"), ("cached_pct", "100"), ("profile", "h9000"),
     ("replicas", "1e99"), ("itl_target_ms", "0"), ("input_tokens", "inf")],
)  # fmt: skip
def test_an_impossible_number_is_named(client: Client, field: str, value: str) -> None:
    answer = client.get("/capacity/lab/", {**OWN, "guess": "3", field: value})
    assert answer.status_code == 422
    assert f'id="id_{field}_error"' in answer.text


def test_no_fleet_left_and_no_latency_left_are_said_in_words(client: Client) -> None:
    gone = client.get("/capacity/lab/", {**OWN, "guess": "3", "lost_pct": "100"})
    assert gone.status_code == 200 and "nothing is left" in gone.text
    strict = client.get("/capacity/lab/", {**OWN, "guess": "3", "itl_target_ms": "1"})
    assert strict.status_code == 200 and "no number of replicas" in strict.text


def test_an_unknown_question_or_parameter_is_refused(client: Client) -> None:
    assert client.get("/capacity/lab/", {"question": "no-such"}).status_code == 404
    assert client.get("/capacity/lab/", {"nonsense": "1"}).status_code == 422
