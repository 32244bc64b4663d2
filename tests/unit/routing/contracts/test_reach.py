"""Which hosts are inside, in every spelling that a resolver takes."""

import ipaddress
import socket
import ssl

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing.contracts.reach import Reach, is_elsewhere, is_public, reach_of

_part = st.one_of(
    st.integers(0, 1 << 33).flatmap(
        lambda n: st.sampled_from([str(n), hex(n), f"0{n:o}", f"{n:#X}", f"0x0{n:x}"])
    ),
    st.sampled_from(["", "08", "0x", "1_0", "+1", "1e3", "a"]),
)


@given(st.lists(_part, min_size=1, max_size=5).map(".".join))
def test_an_address_is_recognised_as_the_resolver_recognises_it(host: str) -> None:
    try:
        packed = socket.inet_aton(host)
    except OSError:
        return
    assert is_public(host) is ipaddress.ip_address(packed).is_global


@pytest.mark.parametrize(
    "host",
    ["localhost", "a.LOCALHOST.", "127.1", "0x7f000001", "2130706433", "0251.0376.0251.0376",
     "10.0.0.1", "::1", "fe80::1", "169.254.169.254", "127.0.0.1."],
)  # fmt: skip
def test_what_is_inside_is_not_public(host: str) -> None:
    assert not is_public(host)


def test_a_provider_is_reached_at_public_addresses_unless_its_host_is_allowed_inside() -> None:
    reach = Reach(ssl.create_default_context(), frozenset({"inside.example"}))
    found = ["10.0.0.7", "1.1.1.1", "::1"]
    assert reach.allowed("api.example", found) == ["1.1.1.1"]
    assert reach.allowed("inside.example", found) == found


def test_an_engine_is_reached_anywhere_but_on_this_machine_and_its_link() -> None:
    reach = Reach(ssl.create_default_context(), frozenset({"near.example"}))
    found = ["10.0.0.7", "1.1.1.1", "fd00::7", "::1", "127.0.0.1", "169.254.169.254", "fe80::1"]
    assert reach.allowed_engine("engine.example", found) == found[:3]
    assert reach.allowed_engine("near.example", found) == found
    assert not is_elsewhere("::ffff:127.0.0.1")
    assert is_elsewhere("engine.example")


def test_a_bad_file_of_authorities_is_an_error(tmp_path) -> None:
    with pytest.raises(OSError):  # noqa: PT011 - the file's own reason
        reach_of(str(tmp_path / "none.pem"), frozenset())
