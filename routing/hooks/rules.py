"""Where a webhook may listen, and what a hook may be called."""

import re
from dataclasses import dataclass
from urllib.parse import SplitResult, urlsplit

MAX_URL_CHARS = 500
SECRET_CHARS = range(16, 201)
HINT_CHARS = 4
NAME = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,38}[a-z0-9])?")
ENTRY_POINT = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,79}")
_HOST = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9.-]{0,251}[A-Za-z0-9])?|[0-9A-Fa-f:.]{2,45}")
_PATH = re.compile(r"/[!-~]*")
_PORTS = {"https": 443, "http": 80}


@dataclass(frozen=True, slots=True)
class Address:
    """Where a webhook listens; `path` begins with a slash and holds the query."""

    host: str
    port: int
    path: str
    has_tls: bool


@dataclass(frozen=True, slots=True)
class Fault:
    """Why something cannot be accepted, and what to do."""

    field: str
    reason: str
    fix: str = ""


def address_of(url: str) -> Address | Fault:
    """The address that a URL names, or what is wrong with it."""
    parts = _split(url)
    if parts is None or parts.scheme not in _PORTS or len(url) > MAX_URL_CHARS:
        return Fault("url", "is no address.", "Such as https://guard.example.com/check.")
    host, port = parts.hostname or "", parts.port or _PORTS[parts.scheme]
    if parts.username is not None or parts.password is not None:
        return Fault("url", "holds a password.", "Leave it out: calls are signed.")
    if "#" in url:
        return Fault("url", "has a fragment.", "Leave out what follows #.")
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    if _HOST.fullmatch(host) is None or _PATH.fullmatch(path) is None:
        return Fault("url", "has a host or path that cannot be called.", "ASCII only, no spaces.")
    return Address(host, port, path, parts.scheme == "https")


def secret_fault(secret: str) -> Fault | None:
    """What is wrong with a signing secret."""
    if len(secret) not in SECRET_CHARS or not secret.isascii() or not secret.isprintable():
        return Fault("secret", "A secret is 16 to 200 visible ASCII characters.")
    return Fault("secret", "A secret has no spaces.") if " " in secret else None


def _split(url: str) -> SplitResult | None:
    try:
        parts = urlsplit(url)
        is_port = parts.port is None or parts.port > 0
    except ValueError:
        return None
    return parts if is_port and parts.hostname else None
