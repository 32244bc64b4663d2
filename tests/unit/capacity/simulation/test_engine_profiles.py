"""Profiles that follow from hardware equal the design's table (decision-core 1.2)."""

import pytest

from capacity.simulation.catalogue import PROFILES, named
from capacity.simulation.profiles import UnknownProfileError

TABLE = {
    # name: t0 ms, c us, d ns, e ns, KV thousand tokens, tok/s of one 8192-token chunk
    "8b-bf16-h100": (7.48, 13.41, 24.65, 2.253, 452, 42_465),
    "32b-bf16-h100-tp2": (15.62, 38.25, 24.65, 4.506, 324, 17_062),
    "70b-fp8-h100-tp4": (11.92, 41.25, 7.70, 2.816, 1394, 18_435),
    "70b-fp8-h200-tp2": (14.30, 49.42, 10.75, 5.633, 1211, 13_471),
}


@pytest.mark.parametrize("name", TABLE)
def test_derived_profile_is_within_one_percent(name: str) -> None:
    profile = named(name)
    times = profile.times
    chunk_s = times.seconds(8192, 0, 0, 8192 * 4096)
    found = (
        times.t0_s * 1e3,
        times.c_s * 1e6,
        times.d_s * 1e9,
        times.e_s * 1e9,
        profile.kv_tokens / 1e3,
        8192 / chunk_s,
    )
    assert found == pytest.approx(TABLE[name], rel=0.01)


def test_unknown_profile_names_the_known_ones() -> None:
    with pytest.raises(UnknownProfileError, match="demo"):
        named("gpu-of-dreams")


def test_every_profile_holds_its_own_longest_context() -> None:
    for profile in PROFILES.values():
        assert profile.context_tokens <= profile.kv_tokens, profile.name


def test_scaled_times_stretch_every_term() -> None:
    slow = named("demo").times.scaled(3)
    assert slow.seconds(5, 7, 1000, 64.0) == pytest.approx(
        3 * named("demo").times.seconds(5, 7, 1000, 64.0)
    )
