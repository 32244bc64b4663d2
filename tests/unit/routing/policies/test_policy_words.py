"""A policy's changes in sentences: each changed path in exactly one, and each known by name."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing.policies.rules.document import Document, digest_of, from_plain
from routing.policies.rules.nodes import Choice, Flag, Group, Number
from routing.policies.rules.reader import Reader
from routing.policies.rules.schema import SCHEMA
from routing.policies.rules.words import flat, words

BASE: dict[str, Any] = {
    "name": "main",
    "models": {
        "llama-70b": {
            "aliases": ["chat"],
            "targets": [{"pool": "eu-a"}, {"pool": "eu-b", "order": 2}],
        },
        "llama": {"targets": [{"pool": "eu-c"}]},
    },
}


def document(**changes: Any) -> Document:
    """The base with values replaced by dotted path; None removes."""
    plain = _copy(BASE)
    for path, value in changes.items():
        *parents, last = path.split("__")
        place = plain
        for key in parents:
            place = place.setdefault(key, {})
        if value is None:
            place.pop(last)
        else:
            place[last] = value
    reader = Reader()
    found = reader.read(SCHEMA, plain, "")
    assert reader.findings == []
    return from_plain(found)


def _copy(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _copy(item) for key, item in value.items()}
    return [_copy(item) for item in value] if isinstance(value, list) else value


def said(before: Document | None, after: Document) -> list[str]:
    return [sentence.text for sentence in words(before, after)]


TARGETS = "models__llama-70b__targets"
FALLBACK = {"model": "llama", "evaluation": "ev-3", "headroom_ratio": 0.15}
FALLBACKS = "models__llama-70b__fallbacks"


@pytest.mark.parametrize(
    ("changes", "text", "takes"),
    [
        ({TARGETS: [{"pool": "eu-a"}]}, "llama-70b is no longer served by eu-b.", True),
        (
            {TARGETS: [*BASE["models"]["llama-70b"]["targets"], {"pool": "us", "weight": 2}]},
            "llama-70b may also be served by us, with weight 2.",
            False,
        ),
        (
            {TARGETS: [*BASE["models"]["llama-70b"]["targets"], {"pool": "us", "adapter": "sql"}]},
            "llama-70b may also be served by us as its adapter sql.",
            False,
        ),
        (
            {TARGETS: [{"pool": "eu-a", "weight": 0}, {"pool": "eu-b", "order": 2}]},
            "eu-a takes no new work for llama-70b (was weight 1).",
            True,
        ),
        (
            {TARGETS: [{"pool": "eu-a"}, {"pool": "eu-b"}]},
            "llama-70b tries eu-b in order 1 (was 2).",
            False,
        ),
        (
            {"models__llama-70b__aliases": ["gpt-4o"]},
            "llama-70b also answers to gpt-4o and no longer answers to chat.",
            True,
        ),
        (
            {"models__llama__context_tokens": 8192},
            "llama takes 8,192 tokens of context (was all that it can).",
            True,
        ),
        ({"models__llama": None}, "llama is no longer served: its callers get 404.", True),
        (
            {"models__qwen": {"targets": [{"pool": "us"}]}},
            "qwen is served from now on, by us.",
            False,
        ),
        (
            {"classes__batch__deadlines__first_token_s": 120},
            "batch waits for its first token at most 120 s (was 600).",
            True,
        ),
        (
            {"classes__standard__caps__output_tokens": 2048},
            "standard ends at 2,048 tokens of output (was the cap of all).",
            True,
        ),
        (
            {"classes__interactive__reserve_ratio": 0.5},
            "interactive keeps 0.5 of each pool (was 0); others borrow less.",
            False,
        ),
        (
            {"classes__batch__floor_ratio": 0.01},
            "batch lends all but 0.01 of each pool while idle (was 0.05).",
            True,
        ),
        (
            {"admission__caps__output_tokens": 8192},
            "A request ends at 8,192 output tokens (was 4,096).",
            False,
        ),
        (
            {"routing__slow_start_s": 0},
            "A new replica gets its full share after 0 s (was 60).",
            False,
        ),
        (
            {"models__llama-70b__fallbacks": [FALLBACK]},
            "llama-70b falls back to llama (ev-3) on no_capacity, upstream_error, "
            "upstream_timeout; 0.15 of its pools is kept for that.",
            False,
        ),
        (
            {"failures__backoff": {"base_s": 0.2}},
            "A first resend waits up to 0.2 s (was 0.05).",
            False,
        ),
        (
            {"failures__on_stream_loss": "continue"},
            "A lost stream goes on elsewhere from the text sent (was: ends with an error).",
            False,
        ),
        (
            {"failures__resend_before_output": True},
            "A request lost before its first token is sent again (was: its caller gets an error).",
            False,
        ),
        (
            {"workflows__research": {"max_spend_usd": "25.00"}},
            "research tasks may spend 25.00 USD (was as other kinds).",
            True,
        ),
        (
            {"workflows__default": {"max_steps": 40}},
            "Tasks of other kinds may take 40 calls (was no cap).",
            True,
        ),
        (
            {"workflows__a.b": {"max_repeats": 3}},
            "a.b tasks may make the same call 3 times (was as other kinds).",
            True,
        ),
        (
            {"workflows__a": {"max_wall_s": 1800}},
            "a tasks may last 1,800 s (was as other kinds).",
            True,
        ),
        (
            {"outage__store_away": "closed"},
            "Store away: everything is refused (was: 0.8 of each limit for 300 s).",
            True,
        ),
    ],
)
def test_each_change_is_one_sentence(changes: dict[str, Any], text: str, takes: bool) -> None:
    (sentence,) = words(document(), document(**changes))
    assert (sentence.text, sentence.takes) == (text, takes)


def test_a_cap_that_rises_takes_nothing() -> None:
    before = document(workflows={"research": {"max_spend_usd": "9.50"}})
    (sentence,) = words(before, document(workflows={"research": {"max_spend_usd": "25.00"}}))
    assert sentence.text == "research tasks may spend 25.00 USD (was 9.50 USD)."
    assert not sentence.takes
    assert [one.takes for one in words(before, document())] == [False]


@pytest.mark.parametrize(
    ("after", "text", "takes"),
    [
        ([], "llama-70b no longer falls back to llama; no capacity is 503.", True),
        (
            [FALLBACK | {"when": ["upstream_error"]}],
            "llama-70b falls back to llama on upstream_error (was no_capacity, upstream_error, "
            "upstream_timeout).",
            True,
        ),
        (
            [FALLBACK | {"evaluation": "ev-4"}],
            "llama-70b falls back to llama by ev-4 (was ev-3).",
            False,
        ),
        (
            [FALLBACK | {"headroom_ratio": 0.1}],
            "llama-70b falls back to llama, 0.1 of its pools is kept for that (was 0.15).",
            True,
        ),
    ],
)
def test_each_change_of_a_fallback_is_one_sentence(
    after: list[dict[str, Any]], text: str, takes: bool
) -> None:
    before = document(**{FALLBACKS: [FALLBACK]})
    (sentence,) = words(before, document(**{FALLBACKS: after}))
    assert (sentence.text, sentence.takes) == (text, takes)


def test_first_version_and_no_change() -> None:
    assert said(None, document()) == ["First version: serves llama, llama-70b."]
    assert said(document(), document()) == []
    assert said(document(), document(note="only a note")) == []


def test_a_model_whose_name_begins_like_another_is_told_apart() -> None:
    before = document(**{"models__llama.70b": {"targets": [{"pool": "us"}]}})
    assert said(before, document(models__llama__context_tokens=1)) == [
        "llama takes 1 tokens of context (was all that it can).",
        "llama.70b is no longer served: its callers get 404.",
    ]


def leaves(node: Any, path: str = "") -> list[tuple[str, Any]]:
    """Every field outside of models and hooks, with its node."""
    if isinstance(node, Group):
        return [
            leaf
            for key, (item, _) in node.fields.items()
            if key not in ("models", "hooks", "workflows", "name", "schema_version")
            for leaf in leaves(item, f"{path}__{key}" if path else key)
        ]
    return [(path, node)]


@pytest.mark.parametrize(("path", "node"), leaves(SCHEMA))
def test_every_field_of_the_schema_has_words_of_its_own(path: str, node: Any) -> None:
    for value in _values(node):
        after = document(**{path: value})
        if digest_of(after) != digest_of(document()):
            (sentence,) = words(document(), after)
            assert path.replace("__", ".") not in sentence.text, "only its path is said"
            return
    pytest.fail("no value differs from the default")


def _values(node: Any) -> list[Any]:
    if isinstance(node, Number):
        return [int(node.most) if node.is_integer else node.most, node.least]
    if isinstance(node, Flag):
        return [True, False]
    assert isinstance(node, Choice)
    return list(node.words)


POOLS = st.lists(
    st.fixed_dictionaries(
        {"pool": st.sampled_from("abc")},
        optional={"order": st.integers(1, 3), "weight": st.sampled_from([0, 1, 2.5])},
    ),
    min_size=1,
    max_size=3,
    unique_by=lambda target: target["pool"],
)
MODELS = st.dictionaries(
    st.sampled_from(["m", "m.n", "m.n.aliases"]),
    st.fixed_dictionaries(
        {"targets": POOLS},
        optional={
            "aliases": st.lists(st.sampled_from(["x", "y"]), unique=True),
            "context_tokens": st.sampled_from([100, 200]),
            "fallbacks": st.lists(
                st.fixed_dictionaries(
                    {
                        "model": st.sampled_from(["m", "m.n", "other"]),
                        "evaluation": st.sampled_from(["ev-1", "ev-2"]),
                        "headroom_ratio": st.sampled_from([0.1, 0.2]),
                    },
                    optional={"when": st.lists(st.sampled_from(["no_capacity"]), max_size=2)},
                ),
                max_size=2,
                unique_by=lambda one: one["model"],
            ),
        },
    ),
    min_size=1,
)


@given(MODELS, MODELS, st.sampled_from([5, 9.5]), st.sampled_from([1, 3]))
def test_each_changed_path_is_said_exactly_once(
    old: dict[str, Any], new: dict[str, Any], stale_s: float, attempts: int
) -> None:
    before = document(models=old)
    after = document(models=new, routing__stale_after_s=stale_s, failures__attempts=attempts)
    covered = [path for sentence in words(before, after) for path in sentence.paths]
    one, other = flat(before), flat(after)
    changed = {
        path for path in {*one, *other}
        if (path in one, one.get(path)) != (path in other, other.get(path))
    }  # fmt: skip
    assert sorted(covered) == sorted(changed)
