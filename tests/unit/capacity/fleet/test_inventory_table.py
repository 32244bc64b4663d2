"""CSV rows of the inventory: every fault by line and column."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capacity.fleet.rules.table import (
    BY_NAME,
    KINDS,
    MAX_CHARS,
    MAX_ROWS,
    TableError,
    row_of,
    rows_of,
)

NODE = BY_NAME["node"]
HEADER = "name,region,domain,gpu_type,gpu_count\n"


def test_a_row_has_a_value_for_each_column() -> None:
    (row,) = rows_of(NODE, "\ufeff" + HEADER + 'n1,eu,a,"H100 SXM",8\n')
    assert row.faults == ()
    assert row.values == {
        "name": "n1",
        "region": "eu",
        "domain": "a",
        "gpu_type": "H100 SXM",
        "gpu_count": 8,
        "state": "in_service",
        "note": "",
    }


def test_every_fault_names_its_line_and_column() -> None:
    text = HEADER + "n1,eu,a,,many\n\nn2,,a,,1\nn3,eu\nn4,eu,a,,2\nn4,eu,b,,2\n"
    rows = rows_of(NODE, text)
    faults = [(row.line, fault.column) for row in rows for fault in row.faults]
    assert faults == [(2, "gpu_count"), (4, "region"), (5, ""), (7, "name")]
    assert "Line 6" in rows[-1].faults[0].message


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "lacks name, region, domain"),
        ("name,region,domain,colour\n", "'colour'"),
        ("name,name,region,domain\n", "twice"),
        (HEADER, "no rows"),
        (HEADER + 'n1,eu,a,"open', "Line 2 is not CSV"),
        (HEADER + "n1,eu,a,,1\n" * 1 + "x" * MAX_CHARS, "characters"),
        (HEADER + "".join(f"n{i},e,a,,1\n" for i in range(MAX_ROWS + 1)), "rows"),
        ("name\0", r"U\+0000"),
        ("name\u202e", r"U\+202E"),
    ],
)
def test_a_text_that_is_no_table_says_what_to_change(text, said) -> None:
    with pytest.raises(TableError, match=said):
        rows_of(NODE, text)


@pytest.mark.parametrize(
    ("kind", "column", "cell"),
    [
        ("node", "gpu_count", "-1"),
        ("node", "gpu_count", "1.5"),
        ("node", "gpu_count", "9" * 17),
        ("model", "bytes_per_token", "nan"),
        ("model", "bytes_per_token", "-inf"),
        ("pool", "spec", "[1]"),
        ("pool", "spec", '{"a": NaN}'),
        ("pool", "spec", '{"a": "\\u0000"}'),
        ("pool", "spec", '{"a": ["\\u001b"]}'),
        ("pool", "spec", "[" * 10_000),
    ],
)
def test_a_cell_of_the_wrong_kind_is_refused(kind, column, cell) -> None:
    needed = {one.name: "1" for one in BY_NAME[kind].columns if one.is_needed}
    row = row_of(BY_NAME[kind], {**needed, column: cell})
    assert [fault.column for fault in row.faults] == [column]


def test_an_unknown_column_of_an_object_is_refused_by_name() -> None:
    row = row_of(BY_NAME["region"], {"slug": "eu", "name": "Europe", "colour": "blue"})
    assert [fault.column for fault in row.faults] == ["colour"]


@given(st.sampled_from(KINDS), st.text(max_size=400))
def test_any_text_gives_rows_or_one_error(kind, text) -> None:
    try:
        rows = rows_of(kind, ",".join(kind.header) + "\n" + text)
    except TableError:
        return
    for row in rows:
        assert row.faults or set(row.values) == set(kind.header)
