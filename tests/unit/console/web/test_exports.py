"""R39: an exported cell is text, whatever a tenant typed."""

import asyncio
import csv
import io

import pytest

from console.web.exports import csv_response, csv_text, safe_cell

HOSTILE = [
    '=HYPERLINK("http://x.example","pay")',
    "@SUM(1+1)",
    "+1",
    "-1",
    "\t=1",
    "\r=1",
    "\n=1",
    "  =1",
    "＝1",  # noqa: RUF001 - the full-width sign is the point
]


@pytest.mark.parametrize("text", HOSTILE)
def test_nothing_starts_a_formula(text):
    assert safe_cell(text) == f"'{text}"


def test_commas_quotes_and_line_breaks_survive():
    row = ['a "quoted", name', "two\nlines", "ünï", "", None, 7]
    back = next(csv.reader(io.StringIO(csv_text([row]), newline="")))
    assert back == ['a "quoted", name', "two\nlines", "ünï", "", "", "7"]


def test_a_response_holds_one_batch_at_a_time():
    asyncio.run(_one_batch_at_a_time())


async def _one_batch_at_a_time():
    fetched = []

    def batches():
        for number in range(3):
            fetched.append(number)
            yield [[number]]

    response = csv_response("rows.csv", ["n"], batches())
    chunks = response.streaming_content.__aiter__()
    assert await chunks.__anext__() == b"n\r\n"
    assert fetched == []
    assert await chunks.__anext__() == b"0\r\n"
    assert fetched == [0]
