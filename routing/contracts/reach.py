"""How upstreams outside are reached: trusted authorities, and public addresses only.

The gateway that calls a provider and the driver that watches it follow the same rule.
"""

import ipaddress
import ssl
from collections.abc import Collection, Iterable
from typing import Final, NamedTuple

_IPV4_BITS: Final = 32
_OCTAL, _DECIMAL, _HEXADECIMAL = 8, 10, 16


class Reach(NamedTuple):
    """How upstreams with TLS are reached.

    A hosted provider only at public addresses, an engine that is named anywhere but on this machine
    or its link, unless the host is one of `private_hosts`, which the operator allows.
    """

    tls: ssl.SSLContext
    private_hosts: Collection[str] = frozenset()

    def allowed(self, host: str, addresses: Iterable[str]) -> list[str]:
        """Those addresses of a provider's host that may be connected to."""
        if host in self.private_hosts:
            return list(addresses)
        return [address for address in addresses if is_public(address)]

    def allowed_engine(self, host: str, addresses: Iterable[str]) -> list[str]:
        """The same of an engine's host."""
        if host in self.private_hosts:
            return list(addresses)
        return [address for address in addresses if is_elsewhere(address)]


def reach_of(ca_file: str, private_hosts: Collection[str]) -> Reach:
    """TLS with the system's authorities and those of a file. Raises `OSError` for a bad file."""
    context = ssl.create_default_context()
    if ca_file:
        context.load_verify_locations(ca_file)
    return Reach(context, private_hosts)


def is_public(host: str) -> bool:
    """Whether a host may be called: a name (looked up at each connection) or a public address.

    Addresses are recognised in every form that a resolver takes, decimal and hexadecimal too.
    """
    if _is_local_name(host):
        return False
    address = _address(host)
    return address is None or address.is_global


def is_elsewhere(host: str) -> bool:
    """Whether a host may be an engine's: a name, or an address of another machine.

    Engines live at private addresses. This machine's own, and those of a link alone (a cloud's
    metadata are there), are somebody else's services, which no form may make us call.
    """
    if _is_local_name(host):
        return False
    address = _address(host)
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    return address is None or not (
        address.is_loopback
        or address.is_link_local
        or address.is_unspecified
        or address.is_multicast
    )


def is_literal(host: str) -> bool:
    """Whether a host is an address, in whatever form: nothing will be looked up."""
    return _address(host) is not None


def _is_local_name(host: str) -> bool:
    name = host.lower().rstrip(".")
    return name == "localhost" or name.endswith(".localhost")


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    name = host.lower().rstrip(".")
    try:
        return ipaddress.ip_address(name)
    except ValueError:
        number = _ipv4_number(name)
    return None if number is None else ipaddress.IPv4Address(number)


def _ipv4_number(host: str) -> int | None:
    """An IPv4 address of one to four numbers, each of any base, as `inet_aton` takes it.

    The last number fills all bytes that are left. None if it is no address.
    """
    *heads, last = (_number(part) for part in host.split("."))
    left_bits = _IPV4_BITS - 8 * len(heads)
    if left_bits <= 0 or last is None or not 0 <= last < 1 << left_bits:
        return None
    found = 0
    for head in heads:
        if head is None or not 0 <= head <= 255:
            return None
        found = found << 8 | head
    return found << left_bits | last


def _number(text: str) -> int | None:
    if not text.isascii() or not text.isalnum():
        return None  # `int` takes signs, spaces and underscores, a resolver none of them
    base = _DECIMAL
    if text.startswith("0x"):
        base = _HEXADECIMAL
    elif len(text) > 1 and text[0] == "0":
        base = _OCTAL
    try:
        return int(text, base)
    except ValueError:
        return None
