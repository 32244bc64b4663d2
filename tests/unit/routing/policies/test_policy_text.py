"""A policy as text: nothing is dropped silently, and a diff hides only what it counts."""

import pytest

from console.errors import InvalidInput
from routing.policies import text


def test_a_document_survives_the_round_trip():
    document = {"name": "main", "note": 'ü "quoted"', "models": {"a": [1, 2.5, None]}}
    assert text.parse(text.to_text(document)) == document


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ('{"a": 1, "a": 2}', "said twice"),
        ('{"a": {"b": 1, "b": 1}}', "said twice"),
        ('{\n "a": }', "line 2"),
        ('{"a": NaN}', "NaN"),
        ("[1]", "object"),
        ("[" * 100_000, "deeply"),
        ('"' + "x" * text.MAX_CHARS + '"', "at most"),
    ],
)
def test_what_is_not_one_is_refused_at_the_document(typed, said):
    with pytest.raises(InvalidInput, match=said) as caught:
        text.parse(typed)
    assert caught.value.field == "document"


def test_a_diff_shows_changes_and_counts_the_rest():
    before = {f"key{n:02d}": n for n in range(40)}
    after = {**before, "key20": 99}
    lines = text.diff(before, after)
    assert [line.text.strip() for line in lines if line.kind == "remove"] == ['"key20": 20,']
    assert [line.text.strip() for line in lines if line.kind == "add"] == ['"key20": 99,']
    shown = sum(line.kind in ("same", "remove") for line in lines)
    hidden = sum(int(line.text.split()[0]) for line in lines if line.kind == "skip")
    assert shown + hidden == 42  # every line of the old document


def test_equal_documents_differ_in_nothing():
    assert text.diff({"a": 1}, {"a": 1}) == []


def test_a_huge_diff_is_cut_and_says_so():
    lines = text.diff({}, {f"k{n}": n for n in range(5000)})
    assert len(lines) <= text.MAX_DIFF_LINES + 2
    assert lines[-1].kind == "skip"
