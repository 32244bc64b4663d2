"""Canonical bytes and the chain of hashes."""

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal

import pytest

from console.audit.rules import (
    GENESIS,
    Event,
    canonical_bytes,
    chain_hash,
    is_link_intact,
    plain,
)

EVENT = Event(
    at=datetime(2026, 5, 1, 12, 0, 0, 123456, UTC),
    actor_id=7,
    actor_label="ana",
    act="key.issue",
    object_type="key",
    object_id="3",
    tenant_id=2,
    reason="",
    before=None,
    after={"name": "bot"},
    request_id="r1",
)
CHANGED = [
    {"at": EVENT.at + timedelta(microseconds=1)},
    {"actor_id": 8},
    {"actor_label": "bob"},
    {"act": "key.revoke"},
    {"object_type": "tenant"},
    {"object_id": "4"},
    {"tenant_id": None},
    {"reason": "x"},
    {"before": {}},
    {"after": {"name": "bat"}},
    {"request_id": ""},
]


@pytest.mark.parametrize("change", CHANGED, ids=lambda change: next(iter(change)))
def test_every_column_is_covered_by_the_hash(change):
    own = chain_hash(GENESIS, EVENT)
    assert is_link_intact(GENESIS, GENESIS, own, EVENT)
    assert not is_link_intact(GENESIS, GENESIS, own, replace(EVENT, **change))


def test_an_event_cannot_follow_another_predecessor():
    own = chain_hash("a" * 64, EVENT)
    assert not is_link_intact("b" * 64, "a" * 64, own, EVENT)


def test_the_same_instant_in_another_zone_has_the_same_bytes():
    moved = replace(EVENT, at=EVENT.at.astimezone(timezone(timedelta(hours=5))))
    assert canonical_bytes(moved) == canonical_bytes(EVENT)


def test_plain_values_survive_a_json_column():
    value = {
        1: (1.5, 10**20 * 1.0, Decimal("0.1")),
        "when": EVENT.at,
        "text": "a\x00b\ud800",
        "flags": [True, None, 3],
        "names": frozenset({"x"}),
    }
    stored = plain(value)
    assert json.loads(json.dumps(stored)) == stored
    assert stored == {
        "1": ["1.5", "1e+20", "0.1"],
        "when": "2026-05-01T12:00:00.123456+00:00",
        "text": "a\ufffdb?",
        "flags": [True, None, 3],
        "names": ["x"],
    }
