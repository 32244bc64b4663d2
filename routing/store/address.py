"""Where the store is: one server, or the masters of a cluster.

`redis+cluster://user:password@host1:6379,host2:6379` (`rediss+cluster://` over TLS) names some
nodes of a cluster, from which the others are learned. Every other URL is one server's.
"""

import binascii
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote, unquote, urlsplit

from routing.store import keys

SLOTS: Final = 16_384
DEFAULT_PORT: Final = 6379
_SCHEMES: Final = {"redis+cluster": "redis", "rediss+cluster": "rediss"}

Node = tuple[str, int]


class AddressError(ValueError):
    """`REDIS_URL` cannot be used; the message says why."""


@dataclass(frozen=True, slots=True)
class ClusterAddress:
    """Seeds of a cluster and how to sign in at each of its nodes. `scheme` is redis or rediss."""

    seeds: tuple[Node, ...]
    scheme: str = "redis"
    username: str = ""
    password: str = ""

    def url_of(self, node: Node) -> str:
        """One node's address as an ordinary URL, credentials included."""
        host, port = node
        who = f"{quote(self.username, safe='')}:{quote(self.password, safe='')}@"
        host = f"[{host}]" if ":" in host else host
        return f"{self.scheme}://{who if self.password else ''}{host}:{port}"


def cluster_of(url: str) -> ClusterAddress | None:
    """The cluster that a URL names; None when it names one server. Raises `AddressError`."""
    scheme, _, rest = url.partition("://")
    if scheme not in _SCHEMES:
        return None
    place = rest.partition("/")[0]
    who, _, hosts = place.rpartition("@")
    username, _, password = who.partition(":")
    seeds = tuple(_node(part) for part in hosts.split(","))
    return ClusterAddress(seeds, _SCHEMES[scheme], unquote(username), unquote(password))


def _node(text: str) -> Node:
    try:
        parts = urlsplit(f"//{text.strip()}")
        host, port = parts.hostname, parts.port or DEFAULT_PORT
    except ValueError as error:
        raise AddressError(f"REDIS_URL: {text!r} is no host:port ({error})") from None
    if not host:
        raise AddressError("REDIS_URL: a cluster needs at least one host:port")
    return host, port


def slot_of(key: bytes) -> int:
    """Cluster slot of a key: CRC16 of its hash tag, or of all of it when it has none."""
    start = key.find(b"{") + 1
    if start:
        end = key.find(b"}", start)
        if end > start:
            key = key[start:end]
    return binascii.crc_hqx(key, 0) % SLOTS


BUCKET_SLOTS: Final = tuple(
    slot_of(keys.bucket_meta(bucket).encode()) for bucket in range(keys.BUCKETS)
)


def masters_in(reply: object, asked: Node) -> list[tuple[int, int, Node]]:
    """`CLUSTER SLOTS` as (first slot, last slot, master).

    A node that does not know its own host says nothing for it: it is the one we asked. Raises
    `ValueError` or `TypeError` for anything else.
    """
    found: list[tuple[int, int, Node]] = []
    if not isinstance(reply, list):
        raise TypeError("CLUSTER SLOTS is no list")
    for row in reply:
        first, last, (raw_host, port, *_) = row[0], row[1], row[2]
        host = raw_host.decode() if isinstance(raw_host, bytes) else str(raw_host or "")
        found.append((int(first), int(last), (host if host not in ("", "?") else asked[0], port)))
    return found
