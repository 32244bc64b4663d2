"""Demand files: the source's own bins, hourly sums, and everything that is wrong with a file."""

import csv
import gzip
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from capacity.forecasts.rules.table import TableError, ending_at, read_demand

START = datetime(2025, 11, 1, tzinfo=UTC)
SLICE = Path(__file__).parents[3] / "data" / "servegen_m-large_demand_10min_days0-8.csv.gz"


def test_ten_minute_rates_become_hourly_sums():
    with gzip.open(SLICE, "rt") as lines:
        rows = list(csv.DictReader(lines))
    with gzip.open(SLICE, "rt") as lines:
        hours = read_demand(lines, start=START, model="m-large")
    assert len(hours) == 9 * 24
    assert hours[0].at == START
    assert hours[-1].at == START + timedelta(hours=9 * 24 - 1)
    for at in (0, 100, 215):
        for place, name in enumerate(("requests", "input_tokens", "output_tokens")):
            wanted = sum(float(row[f"{name}_per_s"]) * 600 for row in rows[at * 6 : at * 6 + 6])
            assert hours[at].sums[place] == round(wanted)


def test_a_file_can_be_moved_to_end_at_an_hour():
    lines = ["t_s,model,requests,input_tokens,output_tokens", "0,m,1,2,3", "3600,m,4,5,6"]
    moved = ending_at(read_demand(lines, start=START), START)
    assert [hour.at for hour in moved] == [START - timedelta(hours=2), START - timedelta(hours=1)]
    assert [hour.sums for hour in moved] == [(1, 2, 3), (4, 5, 6)]


def test_rows_of_an_hour_add_up_by_tenant_and_model():
    lines = [
        "at,tenant,model,requests,input_tokens,output_tokens",
        "2025-11-01T00:10:00+00:00,a,m,1,10,100",
        "2025-11-01T05:50:00+05:30,a,m,2,20,200",
        "2025-11-01T00:20:00Z,b,m,5,50,500",
    ]
    found = read_demand(lines, start=START)
    assert [(hour.tenant, hour.sums) for hour in found] == [
        ("a", (3, 30, 300)),
        ("b", (5, 50, 500)),
    ]


HEAD = "t_s,model,requests,input_tokens,output_tokens"


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        (["a,b"], "needs the columns"),
        ([], "needs the columns"),
        ([HEAD, "x,m,1,1,1"], "line 2: t_s 'x'"),
        ([HEAD, "0,m,-1,1,1"], "line 2: requests '-1'"),
        ([HEAD, "0,m,1,nan,1"], "line 2: input_tokens 'nan'"),
        ([HEAD, "0,m,1,1"], "line 2: output_tokens None"),
        ([HEAD, "0,,1,1,1"], "no model"),
        ([HEAD, "1e12,m,1,1,1"], "ten years"),
        ([HEAD, "0,m,1,1e16,1"], "has more than"),
        ([HEAD.replace("t_s", "at"), "2025-11-01T00:00:00,m,1,1,1"], "has no offset"),
        ([HEAD.replace("t_s", "at"), "yesterday,m,1,1,1"], "is no instant"),
        (
            [HEAD.replace("requests,input_tokens,output_tokens",
                          "requests_per_s,input_tokens_per_s,output_tokens_per_s"),
             "0,m,1,1,1", "420,m,1,1,1"],
            "do not divide an hour",
        ),
        ([HEAD, *(f"0,m{at},1,1,1" for at in range(61))], "more than 60 series"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_file_is_said(lines, says):
    with pytest.raises(TableError, match=says):
        read_demand(lines, start=START)
