"""Pages and exports: hostile names stay text, totals add up."""

import csv
import io
import warnings

import pytest
from django.test import Client

from console.web.units import parse_usd
from tests import factories
from tests.forecasting import make_forecast
from tests.pages import CALLS_OF_TASKS, FORMS, LISTS, OTHERS, Elements, client_of, path_of
from tests.playbooking import make_runs
from tests.reporting import make_report

pytestmark = pytest.mark.django_db
HOSTILE_NAME = '=HYPERLINK("http://x.example","pay")'
HOSTILE_KEY = "<img src=x onerror=alert(1)>"
HOSTILE_MODEL = '"><script>alert(1)</script>'


def test_hostile_names_are_text_on_every_page_and_in_every_export(store):
    """R39."""
    world = factories.World()
    factories.make_tenant(world, "acme", HOSTILE_NAME, key_name=HOSTILE_KEY)
    factories.make_people(world)
    factories.make_fleet(world, {"p-a": 1, "p-b": 1})
    factories.make_policy(world)
    factories.make_rollout(world, "p-b", reason=HOSTILE_KEY)
    factories.make_usage(
        world, "acme", 2, model_asked=HOSTILE_MODEL, model=HOSTILE_MODEL, error_code="<b>x</b>"
    )
    factories.make_tasks(
        world, "acme", 2, task_id=HOSTILE_KEY, task_kind=HOSTILE_NAME, step=HOSTILE_MODEL,
        model=HOSTILE_MODEL,
    )  # fmt: skip
    factories.make_objective(world, model=HOSTILE_MODEL)
    factories.make_quota_request(world, "acme", reason=HOSTILE_KEY)
    factories.make_refusals(world, "acme", 2, model=HOSTILE_MODEL)
    make_runs(world, label=HOSTILE_KEY, end_reason=HOSTILE_MODEL)
    factories.beat(store)
    factories.scrape(store, "p-a", r0={"health": "hung", "reason": HOSTILE_KEY})
    make_forecast(world, hours=100, model=HOSTILE_MODEL)
    make_report()
    client = client_of(world, "ada")
    for path in (*LISTS, *OTHERS, *FORMS):
        answer = client.get(path_of(world, path))
        assert answer.status_code == 200, path
        assert Elements(answer.text).found == [], path
    assert "&lt;img src=x onerror=alert(1)&gt;" in client.get("/tenants/acme/keys/").text
    assert "&lt;img src=x" in client.get("/fleet/pools/p-a/").text
    for path in ("/usage.csv", "/t/acme/usage.csv", "/audit.csv"):
        rows = exported(client, path)
        assert len(rows) > 1, path
        for row in rows:
            assert not [cell for cell in row if cell[:1] in tuple("=+-@\t\r")], path
    assert HOSTILE_KEY in {cell for row in exported(client, "/usage.csv") for cell in row}


def exported(client: Client, path: str) -> list[list[str]]:
    with warnings.catch_warnings():  # the test client reads an asynchronous stream at once
        warnings.simplefilter("ignore")
        raw = b"".join(client.get(path)).decode()
    return list(csv.reader(io.StringIO(raw, newline="")))


def test_the_export_ends_with_totals_that_its_rows_add_up_to(world):
    rows = exported(client_of(world, "vic"), "/t/acme/usage.csv")
    at = {name: position for position, name in enumerate(rows[0])}
    body, total = rows[1:-1], rows[-1]
    assert total[0] == "total"
    assert len(body) == 3 + CALLS_OF_TASKS
    for name in ("input_tokens", "output_tokens"):
        assert int(total[at[name]]) == sum(int(row[at[name]]) for row in body)
    spent = sum(parse_usd(row[at["spend_usd"]]) for row in body)
    assert parse_usd(total[at["spend_usd"]]) == spent > 0
