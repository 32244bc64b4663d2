"""TLS at the callers' port, with client certificates where an authority for them is named.

A renewed certificate is taken up without a restart: files are looked at once a minute, and new
connections get what they hold.
"""

import logging
import ssl
from pathlib import Path
from typing import Final

from routing.gateway.config import ConfigError, TlsFiles

log = logging.getLogger(__name__)

LOOK_S: Final = 60.0
HANDSHAKE_S: Final = 5.0  # a caller that says nothing holds a socket no longer than this
SHUTDOWN_S: Final = 2.0  # for its half of the goodbye


class FrontTls:
    """The context of the callers' port. Raises `ConfigError` when a file cannot be used."""

    def __init__(self, files: TlsFiles) -> None:
        self._files = files
        self._seen = self._changed_at()
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_2
        self.context.set_alpn_protocols(["http/1.1"])
        try:
            self.context.load_cert_chain(files.certificate, files.key)
        except OSError as error:
            raise ConfigError(
                f"HEADRACE_GATEWAY_TLS_CERT_FILE and _KEY_FILE cannot be used: {error}"
            ) from error
        if files.client_authority:
            try:
                self.context.load_verify_locations(files.client_authority)
            except OSError as error:
                raise ConfigError(
                    f"HEADRACE_GATEWAY_TLS_CLIENT_CA_FILE cannot be used: {error}"
                ) from error
            self.context.verify_mode = ssl.CERT_REQUIRED

    def look(self) -> bool:
        """Take a renewed certificate up; whether there was one. A bad file leaves the old one."""
        changed_at = self._changed_at()
        if changed_at == self._seen:
            return False
        self._seen = changed_at
        try:
            # Checked apart: a chain without its key would be half taken up.
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(
                self._files.certificate, self._files.key
            )
            self.context.load_cert_chain(self._files.certificate, self._files.key)
        except OSError as error:
            log.warning("the renewed certificate cannot be used, the old one stays: %s", error)
            return False
        log.info("serving with the renewed certificate")
        return True

    def _changed_at(self) -> tuple[int, ...]:
        """Of both files, in nanoseconds; 0 of one that is not there."""
        return tuple(
            path.stat().st_mtime_ns if path.exists() else 0
            for path in (Path(self._files.certificate), Path(self._files.key))
        )
