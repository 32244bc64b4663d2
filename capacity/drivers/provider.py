"""Hosted providers as the static driver watches them: who they are, and whether they answer.

Nothing is asked of a provider but a TLS handshake: its own pages about itself cost a key, and its
answers are the gateways' to judge.
"""

import ipaddress
import re
import socket
from collections.abc import Collection, Mapping

from capacity.drivers.base import DriverError, Observed, ReplicaStatus
from routing.contracts.reach import is_public, reach_of

SETTINGS = frozenset(("api", "upstream_model", "path_prefix"))
STYLES = ("openai", "anthropic")
MAX_MODEL_CHARS = 200
CONNECT_S = 5.0
_HOST = re.compile(r"(?=.{1,253}\Z)[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?\Z")
_PREFIX = re.compile(r"(?:/[A-Za-z0-9._~-]{1,64}){1,4}\Z")


def check_provider(
    settings: Mapping[str, object],
    addresses: Collection[tuple[str, int]],
    private_hosts: Collection[str],
) -> None:
    """Raise `DriverError` unless the settings name a provider that may be called."""
    if settings.get("api") not in STYLES:
        raise DriverError(f"api is one of {', '.join(STYLES)}")
    model = settings.get("upstream_model", "")
    if not isinstance(model, str) or len(model) > MAX_MODEL_CHARS:
        raise DriverError("upstream_model is the name that the provider knows the model by")
    prefix = settings.get("path_prefix", "")
    if not isinstance(prefix, str) or (prefix and _PREFIX.match(prefix) is None):
        raise DriverError("path_prefix looks like /openai, without the API's own /v1")
    for host, _port in addresses:
        check_host(host)
        if host not in private_hosts and not is_public(host):
            raise DriverError(
                f"{host} is an address inside; who runs Headrace may allow it in"
                " HEADRACE_PRIVATE_PROVIDERS"
            )


def check_host(host: str) -> None:
    """Raise `DriverError` for what is neither a host name nor an address."""
    if _HOST.match(host) is None and not _is_literal(host):
        raise DriverError(f"{host!r} is not a host name: no scheme, path or password")


def _is_literal(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def handshake(host: str, port: int, ca_file: str, private_hosts: Collection[str]) -> ReplicaStatus:
    """Whether a provider completes a TLS handshake, at a public address unless allowed inside."""
    try:
        reach = reach_of(ca_file, private_hosts)
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        addresses = reach.allowed(host, [str(one[4][0]) for one in found])
        if not addresses:
            return ReplicaStatus(Observed.STARTING, host, port, "it has no public address")
        with (
            socket.create_connection((addresses[0], port), CONNECT_S) as plain,
            reach.tls.wrap_socket(plain, server_hostname=host),
        ):
            return ReplicaStatus(Observed.SERVING, host, port)
    except OSError as error:
        return ReplicaStatus(Observed.STARTING, host, port, f"TLS: {error}"[:200])
