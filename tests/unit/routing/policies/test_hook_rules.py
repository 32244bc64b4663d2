"""The `hooks` block of a policy: form, references, gaps, words, and what gateways get of it."""

from dataclasses import replace
from typing import Any

import pytest

from routing.contracts.enums import WorkClass
from routing.contracts.hooks import HookEntry, HookKind, HookPoint, HookUse
from routing.policies.rules.compile import ModelFacts, Sources, compile_snapshot
from routing.policies.rules.document import Document, digest_of, in_order, to_plain
from routing.policies.rules.validate import Checked, Surroundings, check
from routing.policies.rules.words import words

AROUND = Surroundings(
    models=frozenset({"llama-8b"}),
    pools={"p": "llama-8b"},
    priced=frozenset({"llama-8b"}),
    hooks=frozenset({"pii", "tone"}),
)
PII: dict[str, Any] = {"hook": "pii", "at": "before"}


def checked(*hooks: dict[str, Any], around: Surroundings = AROUND) -> Checked:
    plain: dict[str, Any] = {"name": "main", "models": {"llama-8b": {"targets": [{"pool": "p"}]}}}
    return check({**plain, "hooks": list(hooks)}, around)


def document(*hooks: dict[str, Any]) -> Document:
    found = checked(*hooks)
    assert not found.is_refused, found.findings
    assert found.document is not None
    return found.document


def test_defaults_are_filled_and_none_is_not_written() -> None:
    made = document(PII)
    assert to_plain(made)["hooks"] == [
        {"hook": "pii", "at": "before", "deadline_ms": 200, "on_failure": "refuse"}
    ]
    assert "hooks" not in to_plain(document())  # older documents keep their digest
    assert in_order(to_plain(made))["hooks"] == to_plain(made)["hooks"]
    assert digest_of(document(PII)) != digest_of(document())


@pytest.mark.parametrize(
    ("hook", "path", "rule"),
    [
        ({"hook": "gone", "at": "before"}, "hooks[0].hook", "hook"),
        ({"hook": "pii"}, "hooks[0].at", "required"),
        ({**PII, "at": "during"}, "hooks[0].at", "choice"),
        ({**PII, "deadline_ms": 0}, "hooks[0].deadline_ms", "range"),
        ({**PII, "deadline_ms": 10_001}, "hooks[0].deadline_ms", "range"),
        ({**PII, "deadline_ms": 1.5}, "hooks[0].deadline_ms", "type"),
        ({**PII, "on_failure": "retry"}, "hooks[0].on_failure", "choice"),
        ({**PII, "classes": ["urgent"]}, "hooks[0].classes[0]", "choice"),
        ({**PII, "classes": []}, "hooks[0].classes", "hook"),
        ({**PII, "url": "https://x"}, "hooks[0].url", "unknown"),
    ],
)
def test_what_is_wrong_is_named_with_its_path(hook: dict[str, Any], path: str, rule: str) -> None:
    found = checked(hook)
    assert found.is_refused
    assert [(one.path, one.rule) for one in found.findings] == [(path, rule)]


def test_a_hook_twice_at_one_point_and_too_many_are_refused() -> None:
    assert [one.path for one in checked(PII, PII).findings] == ["hooks[1]"]
    assert checked(*[PII] * 17).findings[0].rule == "count"
    unknown = checked({"hook": "gone", "at": "before"}, around=replace(AROUND, hooks=None))
    assert not unknown.is_refused  # where nobody knows which exist


def test_a_hook_that_sees_one_kind_of_answer_only_is_warned_of() -> None:
    stream, after = {"hook": "tone", "at": "stream"}, {"hook": "tone", "at": "after"}
    for one in (stream, after):
        found = checked(one)
        assert not found.is_refused
        assert [finding.rule for finding in found.findings] == ["hook_gap"]
    assert checked(stream, after).findings == ()


STREAM = {"hook": "tone", "at": "stream", "deadline_ms": 50, "on_failure": "pass"}


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        (
            [],
            [{**PII, "classes": ["batch"]}],
            [
                (
                    "pii is asked about each request before it is admitted, for batch, 200 ms at"
                    " most; a failure refuses the call.",
                    True,
                )
            ],
        ),
        ([PII], [], [("pii is no longer asked about each request before it is admitted.", False)]),
        (
            [PII],
            [{**PII, "deadline_ms": 300, "on_failure": "pass"}],
            [
                (
                    "pii, before: may take 300 ms (was 200); lets the call pass when it fails"
                    " (was: refuses the call).",
                    False,
                )
            ],
        ),
        (
            [PII],
            [{**PII, "classes": ["batch"]}],
            [("pii, before: is asked for batch (was all classes).", True)],
        ),
        (
            [PII, STREAM],
            [STREAM, PII],
            [("Hooks are asked in the order tone stream, pii before.", False)],
        ),
        ([PII], [{**PII, "note": "why"}], []),
    ],
)
def test_each_change_is_one_sentence(before: list, after: list, said: list) -> None:
    found = words(document(*before), document(*after))
    assert [(one.text, one.takes) for one in found] == said
    paths = [path for one in found for path in one.paths]
    assert len(paths) == len(set(paths))


def test_gateways_get_the_lines_in_order_and_only_the_hooks_they_name() -> None:
    entries = {
        name: HookEntry(name, HookKind.PYTHON, entry_point=name) for name in ("pii", "tone", "idle")
    }
    sources = Sources(
        tenants=[],
        keys={},
        models={"llama-8b": ModelFacts(100, 100, 2.5)},
        pools={},
        prices={},
        hooks=entries,
    )
    made = document({**STREAM, "classes": ["interactive"]}, PII)
    found = compile_snapshot(made, version=1, digest="d", sources=sources)
    assert found.policy.hooks == (
        HookUse("tone", HookPoint.STREAM, 0.05, True, (WorkClass.INTERACTIVE,)),
        HookUse("pii", HookPoint.BEFORE, 0.2, False, None),
    )
    assert sorted(found.hooks) == ["pii", "tone"]
    gone = replace(sources, hooks={"tone": entries["tone"]})
    left = compile_snapshot(made, version=1, digest="d", sources=gone)
    assert [use.hook for use in left.policy.hooks] == ["tone", "pii"]  # its failure decides
    assert sorted(left.hooks) == ["tone"]
