"""Playbook documents: what is refused at which field, and that the shipped ones are sound."""

import copy
from typing import Any

import pytest

from capacity.playbooks.rules import (
    SHIPPED,
    Document,
    lost_ratio,
    measure_words,
    read,
    to_plain,
)
from routing.contracts.enums import ReplicaHealth
from routing.overrides.rules import Fault


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_documents_read_back_as_they_are(name: str) -> None:
    assert read(to_plain(SHIPPED[name])) == SHIPPED[name]


FAULTS: list[tuple[str, dict[str, Any], str]] = [
    ("noisy-tenant", {"colour": "red"}, "document"),
    ("noisy-tenant", {"signal": "moon_phase"}, "signal"),
    ("noisy-tenant", {"title": ""}, "title"),
    ("noisy-tenant", {"steps": []}, "steps"),
    ("noisy-tenant", {"schema_version": 2}, "schema_version"),
    ("noisy-tenant", {"baseline_least_min": 31}, "baseline_least_min"),
    ("noisy-tenant", {"timing.hold_s": 5}, "timing.hold_s"),
    ("noisy-tenant", {"timing.max_s": 60, "timing.hold_s": 100}, "timing.max_s"),
    ("noisy-tenant", {"steps.0.leave": 3.0}, "steps[0].leave"),
    ("noisy-tenant", {"steps.0.reason": ""}, "steps[0].reason"),
    ("noisy-tenant", {"steps.0.measures": []}, "steps[0].measures"),
    ("noisy-tenant", {"steps.0.measures.0.amount": 0}, "steps[0].measures[0].amount"),
    ("noisy-tenant", {"steps.0.measures.0.kind": "pause"}, "steps[0].measures[0].kind"),
    ("capacity-lost", {"steps.0.measures.0.kind": "context_cap"}, "steps[0].measures[0].kind"),
    ("capacity-lost", {"steps.1.enter": 0.15}, "steps[1].enter"),
    ("capacity-lost", {"steps.2.measures.0.admitted_ratio": 1.0},
     "steps[2].measures[0].admitted_ratio"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "changes", "field"), FAULTS)
def test_a_wrong_document_is_refused_at_its_field(
    name: str, changes: dict[str, Any], field: str
) -> None:
    plain = copy.deepcopy(to_plain(SHIPPED[name]))
    for path, value in changes.items():
        *parents, last = path.split(".")
        at: Any = plain
        for parent in parents:
            at = at[int(parent)] if parent.isdigit() else at[parent]
        at[last] = value
    found = read(plain)
    assert isinstance(found, Fault)
    assert found.field == field
    assert found.reason
    assert found.fix


def test_a_document_needs_little() -> None:
    step = {
        "title": "Pause", "enter": 0.5, "leave": 0.1, "reason": "Why.",
        "measures": [{"kind": "pause", "work_class": "batch"}],
    }  # fmt: skip
    found = read({"title": "Mine", "signal": "pool_lost_ratio", "steps": [step]})
    assert isinstance(found, Document)
    assert to_plain(found)["timing"]["hold_s"] == 120


def test_lost_is_what_was_there_and_is_gone() -> None:
    ok, lost, hung = ReplicaHealth.OK, ReplicaHealth.LOST, ReplicaHealth.HUNG
    assert lost_ratio([("ready", 0, ok), ("ready", 0, None)], 2) == 0
    assert lost_ratio([("ready", 0, lost), ("ready", 0, hung), ("ready", 0, ok)], 4) == 0.5
    assert lost_ratio([("loading", 0, None), ("draining", 3, lost)], 2) == 0
    assert lost_ratio([("loading", 1, None), ("failed", 1, None)], 2) == 1
    assert lost_ratio([("failed", 1, None)], 0) == 0


def test_what_fails_beyond_the_wanted_number_is_not_lost() -> None:
    ok, hung = ReplicaHealth.OK, ReplicaHealth.HUNG
    assert lost_ratio([("ready", 0, ok), ("failed", 1, None)], 1) == 0
    assert lost_ratio([("ready", 0, ok), ("ready", 0, hung)], 1) == 0
    assert lost_ratio([("failed", 1, None), ("failed", 1, None)], 1) == 1
    assert lost_ratio([("ready", 0, ok), ("loading", 2, None), ("failed", 1, None)], 2) == 0.5


def test_a_document_names_its_tenant_in_words() -> None:
    document = SHIPPED["noisy-tenant"]
    measures = document.steps[0].measures
    assert [measure_words(one, document) for one in measures] == [
        "the tenant: prompts of at most 4,096 tokens",
        "the tenant: at most 4 requests at once",
    ]
    assert measure_words(measures[1], document, "acme") == "tenant acme: at most 4 requests at once"
