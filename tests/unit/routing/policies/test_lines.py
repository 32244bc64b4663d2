"""Findings name the line of the text that a person typed."""

import json

from hypothesis import given
from hypothesis import strategies as st

from routing.policies.rules.lines import line_of, lines_of

TEXT = """{
  "name": "main",
  "models": {
    "llama-8b": {"aliases": ["chat",
      "fast"],
      "targets": [
        {"pool": "a \\"quoted\\" { name", "weight": -1.5e3}
      ]
    }
  },
  "outage": {}
}"""


def test_each_value_has_the_line_it_begins_on():
    lines = lines_of(TEXT)
    assert lines["name"] == 2
    assert lines["models.llama-8b"] == 4
    assert lines["models.llama-8b.aliases[1]"] == 5
    assert lines["models.llama-8b.targets[0].weight"] == 7
    assert lines["outage"] == 11


def test_what_is_missing_stands_where_it_would():
    lines = lines_of(TEXT)
    assert line_of("outage.max_s", lines) == 11
    assert line_of("models.llama-8b.targets[0].order", lines) == 7
    assert line_of("nothing.of.it", lines) == 1
    assert line_of("x", {}) is None


def test_text_that_is_no_json_gives_what_could_be_followed():
    assert lines_of('{"a": 1,\n "b": [')["a"] == 1
    assert lines_of("") == {"": 1}
    assert lines_of("[" * 5000)[""] == 1


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=12,
)


@given(JSON)
def test_any_json_is_walked_to_its_end(value):
    text = json.dumps({"only": value, "last": 1}, indent=1)
    assert lines_of(text)["last"] == text.count("\n")
