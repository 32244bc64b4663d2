"""What one gateway process is told by its environment, read once at start."""

import os
import socket
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from routing.contracts.version import VERSION
from routing.store.address import AddressError, cluster_of

DEFAULT_PORT = 8080
DEFAULT_ADMIN_PORT = 8081
MAX_BODY_BYTES = 10_000_000  # the largest prompt a 1M-token context can need, images included


class ConfigError(Exception):
    """A variable is missing or cannot be used; the message names it."""


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """PEM files of the callers' port; with `client_authority` only its certificates may connect."""

    certificate: str
    key: str
    client_authority: str = ""


@dataclass(frozen=True, slots=True)
class GatewayConfig:
    """Addresses, identity and secrets of this process.

    `gateway_id` stays over restarts and owns the journal directory, `incarnation` is new at each
    start. `drain_s` bounds how long a stopping gateway finishes what is in flight. Upstreams over
    TLS are called with the system's authorities, and those in `provider_ca_file`;
    `private_providers` are hosts of providers that may have addresses inside, `private_hooks` such
    hosts of webhooks. `tls` None: callers speak plain HTTP, as behind a balancer.
    """

    gateway_id: str
    incarnation: str
    host: str
    port: int
    admin_port: int
    redis_url: str
    state_dir: Path
    pepper: bytes
    admin_host: str = "127.0.0.1"
    log_level: str = "INFO"
    drain_s: float = 60.0
    max_body_bytes: int = MAX_BODY_BYTES
    provider_ca_file: str = ""
    private_providers: frozenset[str] = frozenset()
    private_hooks: frozenset[str] = frozenset()
    tls: TlsFiles | None = None
    version: str = VERSION

    @property
    def journal_dir(self) -> Path:
        """Directory of this gateway's usage journal."""
        return self.state_dir / "journal" / self.gateway_id

    @property
    def snapshot_path(self) -> Path:
        """File of the last good snapshot."""
        return self.state_dir / f"snapshot.{self.gateway_id}.bin"

    @property
    def overrides_path(self) -> Path:
        """File of the overrides last obeyed."""
        return self.state_dir / f"overrides.{self.gateway_id}.bin"

    @property
    def address(self) -> str:
        """Host that other processes reach this gateway by."""
        return self.host if self.host not in ("", "0.0.0.0", "::") else socket.gethostname()  # noqa: S104


def from_environment(environ: Mapping[str, str] = os.environ) -> GatewayConfig:
    """Read the configuration; raises `ConfigError` naming what is missing or wrong."""
    return GatewayConfig(
        gateway_id=_identifier(environ, "HEADRACE_GATEWAY_ID", "g0"),
        incarnation=uuid.uuid4().hex[:12],
        host=environ.get("HEADRACE_GATEWAY_HOST", "127.0.0.1"),
        port=_number(environ, "HEADRACE_GATEWAY_PORT", DEFAULT_PORT),
        admin_port=_number(environ, "HEADRACE_GATEWAY_ADMIN_PORT", DEFAULT_ADMIN_PORT),
        redis_url=_store_url(environ),
        state_dir=Path(_required(environ, "HEADRACE_STATE")),
        pepper=_required(environ, "HEADRACE_KEY_PEPPER").encode(),
        log_level=environ.get("HEADRACE_LOG_LEVEL", "INFO").upper(),
        drain_s=float(_number(environ, "HEADRACE_GATEWAY_DRAIN_S", 60)),
        provider_ca_file=environ.get("HEADRACE_PROVIDER_CA_FILE", ""),
        private_providers=frozenset(environ.get("HEADRACE_PRIVATE_PROVIDERS", "").split()),
        private_hooks=frozenset(environ.get("HEADRACE_PRIVATE_HOOKS", "").split()),
        max_body_bytes=_number(environ, "HEADRACE_GATEWAY_MAX_BODY_BYTES", MAX_BODY_BYTES),
        tls=_tls_files(environ),
    )


def _required(environ: Mapping[str, str], name: str) -> str:
    value = environ.get(name, "")
    if not value:
        raise ConfigError(f"{name} is not set")
    return value


def _tls_files(environ: Mapping[str, str]) -> TlsFiles | None:
    names = [f"HEADRACE_GATEWAY_TLS_{part}_FILE" for part in ("CERT", "KEY", "CLIENT_CA")]
    certificate, key, authority = (environ.get(name, "") for name in names)
    if certificate and key:
        return TlsFiles(certificate, key, authority)
    for name, is_set in zip(names[:2], (certificate, key), strict=True):
        if not is_set and (certificate or key or authority):
            raise ConfigError(f"{name} is not set, so there is no TLS at the callers' port")
    return None


def _store_url(environ: Mapping[str, str]) -> str:
    url = _required(environ, "REDIS_URL")
    try:
        cluster_of(url)
    except AddressError as error:
        raise ConfigError(str(error)) from None
    return url


def _number(environ: Mapping[str, str], name: str, default: int) -> int:
    text = environ.get(name, "")
    if not text:
        return default
    try:
        return int(text)
    except ValueError:
        raise ConfigError(f"{name} must be a whole number, not {text!r}") from None


def _identifier(environ: Mapping[str, str], name: str, default: str) -> str:
    """Gateway ids become file names, so they hold letters, digits, `-` and `_` only."""
    value = environ.get(name, default)
    if not value or not value.replace("-", "").replace("_", "").isalnum() or not value.isascii():
        raise ConfigError(f"{name} may hold letters, digits, - and _ only")
    return value
