"""Playbook documents: what is refused at which field, and that the shipped ones are sound."""

import copy
from typing import Any

import pytest

from capacity.playbooks.rules import (
    SHIPPED,
    Document,
    burn_now,
    kv_ratio,
    lost_ratio,
    measure_words,
    queue_s,
    read,
    stored,
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
    ("queue-grows", {"steps.0.measures.0.kind": "context_cap"}, "steps[0].measures[0].kind"),
    ("queue-grows", {"signal": "tenant_input_ratio"}, "steps[0].measures[0].kind"),
    ("capacity-lost", {"steps.2.measures.0.admitted_ratio": 1.0},
     "steps[2].measures[0].admitted_ratio"),
    ("capacity-lost", {"steps.2.measures.0.admitted_ratio": None},
     "steps[2].measures[0].admitted_ratio"),
    ("capacity-lost", {"steps.0.measures.0.admitted_ratio": 0.5},
     "steps[0].measures[0].admitted_ratio"),
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


@pytest.mark.parametrize(
    ("engines", "expected"),
    [
        ([], None),
        ([(5, None)], None),  # it holds a queue and began nothing: nobody knows how long
        ([(0, None)], 0.0),
        ([(None, None)], None),
        ([(0, None), (4, 2.0)], 2.0),
        ([(0, 0.1)] * 19 + [(9, 30.0)], 0.1),  # one of twenty is beyond the 95th percentile
        ([(0, 0.1)] * 18 + [(9, 30.0)] * 2, 30.0),
    ],
)
def test_queue_wait_is_the_95th_percentile_over_engines_that_know(engines, expected) -> None:
    assert queue_s(engines) == expected


def test_kv_is_the_mean_of_what_is_known() -> None:
    assert kv_ratio([None, None]) is None
    assert kv_ratio([0.5, None, 1.0]) == 0.75


@pytest.mark.parametrize(
    ("hour", "five_min", "bad", "expected"),
    [(None, None, 0, None), (20.0, 30.0, 500, 20.0), (20.0, 1.0, 500, 1.0), (20.0, None, 500, 0.0),
     (80.0, 80.0, 49, 0.0)],
)  # fmt: skip
def test_burn_needs_both_windows_and_enough_bad_requests(hour, five_min, bad, expected) -> None:
    assert burn_now(hour, five_min, bad) == expected


def test_a_measure_names_its_model_or_whose_it_will_be() -> None:
    document = SHIPPED["queue-grows"]
    pause = document.steps[1].measures[0]
    assert "the pool's model" in measure_words(pause, document)
    assert "llama-8b" in measure_words(pause, document, "llama-8b")
    assert "pool" not in measure_words(pause, document, "")


def test_a_shed_says_how_much_it_admits_and_one_kept_before_goes_on_refusing_all() -> None:
    plain = copy.deepcopy(to_plain(SHIPPED["capacity-lost"]))
    measure = plain["steps"][2]["measures"][0]
    del measure["admitted_ratio"]
    refused = read(plain)
    assert isinstance(refused, Fault)
    assert refused.field == "steps[2].measures[0].admitted_ratio"
    assert "admit 0% of class standard" in measure_words(
        stored(plain).steps[2].measures[0], stored(plain)
    )
    measure["admitted_ratio"] = 0
    assert not isinstance(read(plain), Fault)
