"""Exports: totals add up. That names stay text there is case R39."""

import csv
import io
import warnings

import pytest
from django.test import Client

from console.web.units import parse_usd
from tests.pages import CALLS_OF_TASKS, client_of

pytestmark = pytest.mark.django_db


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
