"""Pages: tables page by key, filter, and come without their frame."""

import re

import pytest

from tests import factories
from tests.pages import CALLS_OF_TASKS, LISTS, client_of

pytestmark = pytest.mark.django_db


def test_pages_link_to_the_next_rows_and_show_each_once(world):
    factories.make_usage(world, "acme", 120)
    client = client_of(world, "ana")
    seen: list[str] = []
    address: str | None = "/usage/?tenant=acme"
    pages = 0
    while address:
        text = client.get(address).text
        seen += re.findall(r'title="Request ([0-9a-f-]{36})"', text)
        found = re.search(r'href="([^"]+)" rel="next"', text)
        address = "/usage/" + found.group(1).replace("&amp;", "&") if found else None
        pages += 1
    assert pages == 3
    assert len(seen) == len(set(seen)) == 123 + CALLS_OF_TASKS


def test_a_wrong_filter_is_said_at_once(world):
    client = client_of(world, "ana")
    for query in ("after=zzz", "key=x", "since=yesterday", "status=fine"):
        answer = client.get(f"/usage/?{query}")
        assert answer.status_code == 422, query
    assert client.get("/usage/?tenant=no-such").status_code == 404


def test_htmx_gets_the_same_rows_without_the_frame(world):
    client = client_of(world, "ada")
    for path in LISTS:
        whole = client.get(path)
        part = client.get(path, headers={"HX-Request": "true"})
        assert part.headers["Vary"].startswith("HX-Request") or "HX-Request" in part.headers["Vary"]
        assert "<html" not in part.text, path
        assert 'id="rows"' in part.text, path
        assert "<html" in whole.text, path
