"""Replicas that somebody else runs: addresses in the pool's settings, one per ordinal.

Settings: `{"addresses": ["10.0.0.5:8000", ...]}`, on other machines unless allowed; with `"tls":
true` they are called over TLS. With `"api": "openai"` or `"anthropic"` the addresses are a hosted
provider's, called over TLS always (`provider.py`).
"""

import socket
import ssl

from capacity.drivers.base import (
    DriverError,
    Handle,
    Identity,
    Observed,
    PoolSpec,
    ReplicaStatus,
)
from capacity.drivers.engine_client import Tls, completes, identity, look
from capacity.drivers.provider import SETTINGS, check_host, check_provider, handshake
from routing.contracts.reach import is_elsewhere, is_literal, reach_of

MAX_PORT = 65_535
_NOT_ELSEWHERE = (
    "is an address of this machine or of its link; who runs Headrace may allow it in"
    " HEADRACE_PRIVATE_PROVIDERS"
)


class StaticDriver:
    """Watches given addresses; starting and stopping them is not ours."""

    def __init__(self, ca_file: str = "", private_hosts: frozenset[str] = frozenset()) -> None:
        """`ca_file` is an authority beside the system's, of providers and of engines.

        `private_hosts` may be inside (providers), or this machine (engines).
        """
        self._ca_file = ca_file
        self._private_hosts = private_hosts
        self._context: ssl.SSLContext | None = None

    def check(self, spec: PoolSpec) -> None:
        """Raise `DriverError` unless each address is `host:port`; a provider's may be called."""
        known = {"addresses", *(SETTINGS if "api" in spec.settings else ("api", "tls"))}
        for name in spec.settings:
            if name not in known:
                raise DriverError(
                    f"the static driver knows no setting {name!r}, only {', '.join(sorted(known))}"
                )
        addresses = _addresses(spec)
        if "api" in spec.settings:
            check_provider(spec.settings, addresses, self._private_hosts)
            return
        if not isinstance(spec.settings.get("tls", False), bool):
            raise DriverError("setting 'tls' is true or false")
        for host, _port in addresses:
            check_host(host)
            if not (host in self._private_hosts or is_elsewhere(host)):
                raise DriverError(f"{host} {_NOT_ELSEWHERE}")

    def start(self, spec: PoolSpec, ordinal: int) -> Handle:
        """Name the ordinal's address. Raises `DriverError` when there are too few."""
        addresses = _addresses(spec)
        if ordinal >= len(addresses):
            raise DriverError(f"pool {spec.pool} has {len(addresses)} addresses: add one to spec")
        host, port = addresses[ordinal]
        return {"name": spec.replica_name(ordinal), "host": host, "port": port}

    def status(self, spec: PoolSpec, handle: Handle, *, wait_s: float = 1.0) -> ReplicaStatus:
        """Look at the address in the handle; `gone` once the settings no longer list it."""
        address = (str(handle.get("host", "")), int(handle.get("port", 0)))
        if address not in _addresses(spec):
            return ReplicaStatus(Observed.GONE, cause="its address left the pool's settings")
        if "api" in spec.settings:
            return handshake(*address, self._ca_file, self._private_hosts)
        if not self._may_call(*address):
            return ReplicaStatus(Observed.STARTING, *address, f"it {_NOT_ELSEWHERE}"[:200])
        return look(*address, spec.model, wait_s, self._tls(spec))

    def identify(self, spec: PoolSpec, handle: Handle) -> Identity | None:
        """What serves at the address; a provider is not asked."""
        if "api" in spec.settings:
            return Identity((spec.model,), "", "")
        address = (str(handle["host"]), int(handle["port"]))
        if not self._may_call(*address):
            return None
        return identity(*address, spec.model, tls=self._tls(spec))

    def probe(self, spec: PoolSpec, handle: Handle) -> bool:
        """Whether the address completes one token; a provider would charge for it."""
        if "api" in spec.settings:
            return self.status(spec, handle).observed is Observed.SERVING
        address = (str(handle["host"]), int(handle["port"]))
        return self._may_call(*address) and completes(*address, spec.model, self._tls(spec))

    def _tls(self, spec: PoolSpec) -> Tls | None:
        return self._trusted if spec.settings.get("tls") else None

    def _trusted(self) -> ssl.SSLContext:
        """Authorities of engines; made once, as reading the system's takes 20 ms of CPU."""
        if self._context is None:
            self._context = reach_of(self._ca_file, self._private_hosts).tls
        return self._context

    def _may_call(self, host: str, port: int) -> bool:
        """Whether all that a name stands for now is elsewhere: it may have moved since it was put.

        One that cannot be looked up is nobody's: the call fails by itself.
        """
        if host in self._private_hosts or is_literal(host):
            return True
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except OSError:
            return True
        return all(is_elsewhere(str(one[4][0])) for one in found)

    def stop(self, handle: Handle, drain_s: float) -> None:
        """Nothing: the process is not ours, and routing has already left it."""


def _addresses(spec: PoolSpec) -> list[tuple[str, int]]:
    raw = spec.settings.get("addresses")
    if not isinstance(raw, list) or not raw:
        raise DriverError('spec needs {"addresses": ["host:port", ...]}')
    return [_address(item) for item in raw]


def _address(item: object) -> tuple[str, int]:
    host, _colon, port = str(item).rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) <= MAX_PORT:
        raise DriverError(f"address {item!r} is not host:port")
    return host.strip("[]"), int(port)
