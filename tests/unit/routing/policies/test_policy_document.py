"""Policy documents: defaults, findings, digests."""

import copy
import dataclasses
import json
from typing import Any

import pytest

from routing.policies.rules.document import digest_of, to_plain
from routing.policies.rules.fallbacks import FallbackFacts, PoolFacts
from routing.policies.rules.findings import Level
from routing.policies.rules.reader import MAX_FINDINGS
from routing.policies.rules.validate import Checked, Surroundings, check

AROUND = Surroundings(
    models=frozenset({"llama-8b", "llama-70b", "unpriced"}),
    pools={"eu-a-8b": "llama-8b", "eu-b-8b": "llama-8b", "eu-a-70b": "llama-70b"},
    priced=frozenset({"llama-8b", "llama-70b"}),
)
SMALLEST: dict[str, Any] = {
    "name": "main",
    "models": {"llama-8b": {"targets": [{"pool": "eu-a-8b"}]}},
}
FULL: dict[str, Any] = {
    "schema_version": 1,
    "name": "main",
    "note": "Own GPUs first.",
    "models": {
        "llama-8b": {
            "aliases": ["chat", "gpt-4o"],
            "targets": [
                {"pool": "eu-a-8b", "order": 1, "weight": 2},
                {"pool": "eu-b-8b", "order": 2, "note": "spill"},
            ],
            "context_tokens": 8192,
        }
    },
    "classes": {
        "interactive": {
            "deadlines": {"first_token_s": 5, "between_tokens_s": 5, "total_s": 300},
            "caps": {"output_tokens": 4096},
            "reserve_ratio": 0.5,
            "floor_ratio": 0.1,
        }
    },
    "admission": {
        "default_class": "standard",
        "caps": {"output_tokens": 8192, "choices": 4},
        "estimate": {"bytes_per_token": 2.5},
    },
    "routing": {"stale_after_s": 3},
    "failures": {
        "attempts": 2,
        "retry_budget": {"per_success": 0.1, "burst": 10},
        "resend_before_output": False,
    },
    "outage": {"store_away": "degraded", "share_ratio": 0.8, "max_s": 300},
}


def changed(path: str, value: object) -> dict[str, Any]:
    """The full document with one value set; `...` removes it."""
    document = copy.deepcopy(FULL)
    *parents, last = path.split("/")
    place: Any = document
    for name in parents:
        place = place[int(name)] if isinstance(place, list) else place.setdefault(name, {})
    if value is ...:
        del place[last]
    else:
        place[last] = value
    return document


def refusals(document: object) -> dict[str, tuple[str, str]]:
    checked = check(document, AROUND)
    return {f.path: (f.rule, f.fix) for f in checked.findings if f.level is Level.REFUSE}


def accepted(document: object) -> Checked:
    checked = check(document, AROUND)
    assert not checked.findings
    assert checked.document is not None
    return checked


def test_smallest_policy_has_all_defaults():
    document = accepted(SMALLEST).document
    assert document.models["llama-8b"].targets[0].weight == 1.0
    assert document.admission.caps.output_tokens == 4096
    assert document.classes.interactive.deadlines.first_token_s == 5.0
    assert document.classes.batch.deadlines.first_token_s == 600.0
    assert document.outage.store_away == "degraded"


def test_a_document_with_its_defaults_is_the_same_policy():
    document = accepted(SMALLEST).document
    again = accepted(json.loads(json.dumps(to_plain(document)))).document
    assert again == document
    assert digest_of(again) == digest_of(document)


def test_notes_change_no_digest_and_are_kept():
    full, bare = accepted(FULL).document, accepted(changed("note", ...)).document
    assert digest_of(full) == digest_of(bare)
    assert to_plain(full)["note"] == "Own GPUs first."
    assert to_plain(full)["models"]["llama-8b"]["targets"][1]["note"] == "spill"


def test_spelling_of_a_number_changes_no_digest():
    document = accepted(changed("outage/max_s", 300.0)).document
    assert digest_of(document) == digest_of(accepted(FULL).document)


CHANGES = [
    ("models/llama-8b/aliases", ["chat"]),
    ("models/llama-8b/targets/0/weight", 3),
    ("models/llama-8b/targets/0/order", 2),
    ("models/llama-8b/targets", [{"pool": "eu-a-70b", "adapter": "sql"}]),
    ("models/llama-8b/context_tokens", 4096),
    ("classes/interactive/deadlines/first_token_s", 6),
    ("classes/interactive/caps/output_tokens", 1),
    ("classes/interactive/reserve_ratio", 0.4),
    ("classes/interactive/floor_ratio", 0.2),
    ("classes/batch", {"deadlines": {"total_s": 3600}}),
    ("admission/default_class", "batch"),
    ("admission/caps/output_tokens", 1),
    ("admission/caps/choices", 1),
    ("admission/estimate/bytes_per_token", 3),
    ("routing/stale_after_s", 4),
    ("routing/slow_start_s", 120),
    ("failures/attempts", 3),
    ("failures/retry_budget/per_success", 0.2),
    ("failures/retry_budget/burst", 1),
    ("failures/resend_before_output", True),
    ("failures/on_stream_loss", "continue"),
    ("failures/backoff/base_s", 0.1),
    ("failures/backoff/max_s", 1),
    ("outage/store_away", "closed"),
    ("outage/share_ratio", 0.5),
    ("outage/max_s", 5),
    ("workflows/default/max_steps", 40),
    ("workflows/default/max_spend_usd", "2.00"),
    ("workflows/default/max_wall_s", 1800),
    ("workflows/default/max_repeats", 3),
    ("workflows", {"default": {"max_steps": 40}, "research": {"max_steps": 200}}),
]


@pytest.mark.parametrize(("path", "value"), CHANGES)
def test_each_value_that_gateways_honour_changes_the_digest(path, value):
    changed_digest = digest_of(accepted(changed(path, value)).document)
    assert changed_digest != digest_of(accepted(FULL).document)


@pytest.mark.parametrize(
    ("path", "value", "at", "rule", "fix"),
    [
        ("failures/num_retries", 2, "failures.num_retries", "unknown", "`attempts` = retries + 1"),
        ("failures/attemps", 2, "failures.attemps", "unknown", "Did you mean attempts?"),
        ("stale_after_s", 3, "stale_after_s", "misplaced", "Move it."),
        ("outage/max_s", 1000, "outage.max_s", "range", "Use 5-900."),
        ("outage/max_s", "300", "outage.max_s", "type", "Use a number."),
        ("outage/max_s", True, "outage.max_s", "type", "Use a number."),
        ("outage/store_away", "open", "outage.store_away", "choice", "degraded, closed"),
        ("failures/attempts", 1.5, "failures.attempts", "type", "whole"),
        ("failures/resend_before_output", "no", "failures.resend_before_output", "type", "true"),
        ("classes/batch", [], "classes.batch", "type", "Use a map."),
        ("classes/bulk", {}, "classes.bulk", "unknown", "Remove it."),
        ("plugins", [], "plugins", "unknown", "Remove it."),
        ("models", {}, "models", "count", "Use 1 to"),
        ("workflows", {"a b": {"max_steps": 1}}, "workflows.a b", "name", "Letters"),
        ("workflows", {"x": {}}, "workflows.x", "empty", "Say one, or remove it."),
        ("workflows/x/max_steps", 0, "workflows.x.max_steps", "range", "Use 1-"),
        ("workflows/x/max_repeats", 21, "workflows.x.max_repeats", "range", "Use 1-20."),
        ("workflows/x/max_wall_s", 604_801, "workflows.x.max_wall_s", "range", "Use 1-"),
        ("workflows/x/max_spend_usd", 2, "workflows.x.max_spend_usd", "type", "Use text."),
        ("workflows/x/max_spend_usd", "0.00", "workflows.x.max_spend_usd", "name", '"2.00"'),
        ("workflows/x/max_spend_usd", "-1", "workflows.x.max_spend_usd", "name", '"2.00"'),
        ("workflows/x/max_spend_usd", "1e3", "workflows.x.max_spend_usd", "name", '"2.00"'),
        ("workflows/x/max_tokens", 1, "workflows.x.max_tokens", "unknown", "max_spend_usd?"),
        ("models", ..., "models", "required", "Say it."),
        ("models/llama-8b/aliases", ["a b"], "models.llama-8b.aliases[0]", "name", "Letters"),
        ("models/llama-8b/aliases", ["llama-8b"], "models.llama-8b.aliases[0]", "alias", "Rename"),
        ("models/llama-8b/aliases", ["x", "x"], "models.llama-8b.aliases[1]", "alias", "Rename"),
        ("models/llama-8b/targets", [], "models.llama-8b.targets", "count", "Name a pool."),
        (
            "models/llama-8b/targets/0/pool",
            "eu-a-70b",
            "models.llama-8b.targets[0]",
            "pool",
            "Choose another, or name the adapter.",
        ),
        (
            "models/llama-8b/targets/0/adapter",
            "sql",
            "models.llama-8b.targets[0].adapter",
            "adapter",
            "Drop it.",
        ),
        ("models/llama-8b/targets/0/pool", "gone", "models.llama-8b.targets[0]", "pool", "Name a"),
        (
            "models/llama-8b/targets/1/pool",
            "eu-a-8b",
            "models.llama-8b.targets[1]",
            "pool",
            "Drop one.",
        ),
        ("models/unpriced", {"targets": []}, "models.unpriced", "price", "0 must be said"),
        ("models/unknown", {"targets": []}, "models.unknown", "model", "Add the model first."),
        ("failures/backoff/max_s", 31, "failures.backoff.max_s", "range", "Use 0-30."),
        (
            "models/llama-8b/fallbacks",
            [{"model": "x", "evaluation": "2031", "headroom_ratio": 0.1}],
            "models.llama-8b.fallbacks[0].evaluation",
            "name",
            "such as ev-12",
        ),
        (
            "models/llama-8b/fallbacks",
            [{"model": "x", "evaluation": "ev-1"}],
            "models.llama-8b.fallbacks[0].headroom_ratio",
            "required",
            "Say it.",
        ),
        ("note", 3, "note", "type", "Use text."),
        ("schema_version", 2, "schema_version", "range", "Use 1-1."),
    ],
)
def test_findings_name_the_path_the_rule_and_the_fix(path, value, at, rule, fix):
    found = refusals(changed(path, value))
    assert at in found
    assert found[at][0] == rule
    assert fix in found[at][1]


def test_a_default_that_came_later_changes_no_digest():
    """Documents published before reserved shares existed are the same policies today."""
    document = accepted(SMALLEST).document
    assert "fallbacks" not in to_plain(document)["models"]["llama-8b"]
    assert "backoff" not in to_plain(document)["failures"]
    spelled = changed("failures/backoff", {"base_s": 0.05, "max_s": 2})
    assert digest_of(accepted(spelled).document) == digest_of(accepted(FULL).document)
    assert "reserve_ratio" not in to_plain(document)["classes"]["interactive"]
    said = changed("classes/interactive", {"reserve_ratio": 0, "floor_ratio": 0.05})
    assert digest_of(accepted(said).document) == digest_of(
        accepted(changed("classes", {})).document
    )


@pytest.mark.parametrize(
    ("shares", "fix"),
    [
        ({"interactive": (0.6, 0.1), "standard": (0.5, 0.1)}, "At most 0.9."),
        ({"interactive": (0.9, 0.1), "standard": (0, 0.1)}, "At most 1: lower one of them."),
    ],
)
def test_shares_of_classes_leave_something_for_all(shares, fix):
    classes = {name: {"reserve_ratio": r, "floor_ratio": f} for name, (r, f) in shares.items()}
    assert refusals(changed("classes", classes)) == {"classes": ("sum", fix)}


def test_shares_of_pools_without_limits_are_warned_of():
    checked = check(FULL, dataclasses.replace(AROUND, limited=frozenset({"eu-a-8b"})))
    (finding,) = checked.findings
    assert (finding.level, finding.rule) == (Level.WARN, "unlimited")
    assert "eu-b-8b has no limit" in finding.reason
    assert check(SMALLEST, dataclasses.replace(AROUND, limited=frozenset())).findings == ()


def test_all_findings_come_at_once():
    document = changed("failures/num_retries", 2)
    document["outage"] = {"max_s": 1}
    document["nonsense"] = {}
    document["classes"]["batch"] = 3
    assert set(refusals(document)) == {
        "failures.num_retries",
        "outage.max_s",
        "nonsense",
        "classes.batch",
    }


@pytest.mark.parametrize("document", [None, [], "main", 3, {}, {"models": None}])
def test_what_is_no_document_is_refused(document):
    checked = check(document, AROUND)
    assert checked.document is None
    assert checked.is_refused


def test_findings_are_bounded():
    document = changed("note", "x")
    document.update({f"key-{number}": 1 for number in range(1000)})
    assert len(check(document, AROUND).findings) == MAX_FINDINGS


def test_a_drained_model_is_a_warning():
    document = changed("models/llama-8b/targets", [{"pool": "eu-a-8b", "weight": 0}])
    checked = check(document, AROUND)
    assert [finding.rule for finding in checked.findings] == ["drained"]
    assert not checked.is_refused


FALLBACKS = FallbackFacts(
    context_tokens={"llama-8b": 8192, "llama-70b": 65_536},
    pools={
        "eu-a-8b": PoolFacts("eu/a", frozenset({"chat", "tools"})),
        "eu-b-8b": PoolFacts("eu/b", frozenset({"chat", "tools"})),
        "eu-a-70b": PoolFacts("eu/a", frozenset({"chat"})),
    },
    evaluations=frozenset({("ev-7", "llama-8b", "llama-70b"), ("ev-8", "llama-70b", "llama-8b")}),
)


def with_fallback(**fields: Any) -> dict[str, Any]:
    """llama-8b in zone b alone, with llama-70b in zone a to stand in for it."""
    one = {"model": "llama-70b", "evaluation": "ev-7", "headroom_ratio": 0.15} | fields
    return {
        "name": "main",
        "models": {
            "llama-8b": {"targets": [{"pool": "eu-b-8b"}], "fallbacks": [one]},
            "llama-70b": {"targets": [{"pool": "eu-a-70b"}]},
        },
    }


def found_of(document: object, facts: FallbackFacts = FALLBACKS) -> list[tuple[str, str, str]]:
    findings = check(document, dataclasses.replace(AROUND, fallbacks=facts)).findings
    return [(one.level.value, one.path, f"{one.reason} {one.fix}") for one in findings]


def test_a_fallback_that_is_evaluated_elsewhere_and_as_able_may_stand_in():
    able = dataclasses.replace(
        FALLBACKS,
        pools={**FALLBACKS.pools, "eu-a-70b": PoolFacts("eu/a", frozenset({"chat", "tools"}))},
    )
    assert found_of(with_fallback(), able) == []
    checked = check(with_fallback(), dataclasses.replace(AROUND, fallbacks=able))
    assert checked.document.models["llama-8b"].fallbacks[0].when == [
        "no_capacity", "upstream_error", "upstream_timeout",
    ]  # fmt: skip


def test_each_fault_of_a_fallback_is_said_in_one_finding():
    document = with_fallback()
    document["models"]["llama-8b"]["targets"] = [{"pool": "eu-a-8b"}, {"pool": "eu-b-8b"}]
    document["models"]["llama-70b"]["context_tokens"] = 4096
    document["models"]["llama-8b"]["fallbacks"][0]["evaluation"] = "ev-8"
    assert found_of(document) == [
        (
            "refuse",
            "models.llama-8b.fallbacks[0]",
            "shares zone eu/a (context 4096 < 8192; no evaluation). Choose another.",
        )
    ]


def test_a_pool_that_takes_no_work_shares_no_zone():
    document = with_fallback()
    drained = {"pool": "eu-a-8b", "weight": 0}
    document["models"]["llama-8b"]["targets"].append(drained)
    assert not any(level == "refuse" for level, _, _ in found_of(document))


def test_what_a_fallback_cannot_do_and_room_that_cannot_be_kept_are_warned_of():
    unlimited = PoolFacts("eu/a", frozenset({"chat"}), has_limits=False)
    facts = dataclasses.replace(FALLBACKS, pools={**FALLBACKS.pools, "eu-a-70b": unlimited})
    assert found_of(with_fallback(), facts) == [
        (
            "warn",
            "models.llama-8b.fallbacks[0]",
            "lacks tools. Requests that ask for it stay.",
        ),
        (
            "warn",
            "models.llama-8b.fallbacks[0].headroom_ratio",
            "eu-a-70b has no limit: there is nothing to keep free. "
            "Set its concurrency or KV tokens on the pool's limits page.",
        ),
    ]


@pytest.mark.parametrize(
    ("model", "says"),
    [
        ("llama-8b", "llama-8b is the model itself. Choose another."),
        ("qwen", "qwen is not served by this policy. Give it targets, or choose another."),
    ],
)
def test_a_fallback_is_another_model_that_is_served(model, says):
    assert found_of(with_fallback(model=model)) == [
        ("refuse", "models.llama-8b.fallbacks[0]", says)
    ]


def test_what_is_kept_for_classes_and_for_fallbacks_fits_into_a_pool():
    document = with_fallback(headroom_ratio=0.5)
    document["classes"] = {"interactive": {"reserve_ratio": 0.6}}
    paths = [path for level, path, _ in found_of(document) if level == "refuse"]
    assert paths == ["models.llama-8b.fallbacks[0].headroom_ratio"]
