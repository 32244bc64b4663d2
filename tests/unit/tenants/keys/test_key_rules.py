"""The form of API keys."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing.contracts.digest import compose_secret, is_well_formed, keyed_digest
from tenants.keys.rules import (
    LONGEST_GRACE_S,
    SEED_BYTES,
    is_grace,
    looks_like_key,
    secret_from_seed,
    seed_of_call,
)

SEED = bytes(range(SEED_BYTES))


def test_a_key_is_scheme_prefix_random_and_checksum():
    prefix, secret = secret_from_seed(SEED)
    scheme, shown, rest = secret.split("_", 2)
    assert (scheme, shown) == ("hr", prefix)
    assert (len(prefix), len(rest)) == (8, 43 + 6)
    assert looks_like_key(secret)


@given(st.binary(min_size=SEED_BYTES, max_size=SEED_BYTES), st.integers(0, 60), st.characters())
def test_one_changed_character_is_noticed(seed, at, replacement):
    _, secret = secret_from_seed(seed)
    changed = secret[:at] + replacement + secret[at + 1 :]
    assert looks_like_key(changed) == (changed == secret)


def test_other_schemes_and_lengths_are_no_keys():
    _, secret = secret_from_seed(SEED)
    assert not is_well_formed("hrt", secret)
    assert not looks_like_key(secret + "0")
    assert not looks_like_key("")
    with pytest.raises(ValueError, match="8 prefix"):
        compose_secret("hr", "short", "x" * 43)
    with pytest.raises(ValueError, match="64 bytes"):
        secret_from_seed(b"short")


def test_a_repeated_call_has_the_same_seed_and_every_other_call_another():
    seeds = {
        seed_of_call(pepper, act, subject, key)
        for pepper in (b"p", b"q")
        for act in ("issue", "rotate")
        for subject in (1, 11)
        for key in ("idem-0001", "1idem-0001")
    }
    assert len(seeds) == 16
    assert seed_of_call(b"p", "issue", 1, "idem-0001") in seeds


def test_the_digest_needs_the_pepper():
    assert keyed_digest(b"p", b"s") != keyed_digest(b"q", b"s")
    assert len(keyed_digest(b"p", b"s")) == 64


def test_grace_is_bounded():
    assert is_grace(0)
    assert is_grace(LONGEST_GRACE_S)
    assert not is_grace(-1)
    assert not is_grace(LONGEST_GRACE_S + 1)
