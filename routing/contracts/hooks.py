"""Safety hooks: where they stand, what they are asked, what they may answer.

The policy names them (`HookUse`), a table of their own says what they are (`HookEntry`), gateways
report how they do (`HookReport`).
"""

import hashlib
import hmac
from enum import StrEnum
from typing import NamedTuple

import msgspec

from routing.contracts.enums import WorkClass

MAX_HOOKS = 50  # known to an installation: their names are labels of metrics
MAX_USES = 16  # in a policy
MAX_DEADLINE_MS = 10_000
ENTRY_POINTS = "headrace.hooks"  # group of entry points that Python hooks are found in
SIGNATURE_VERSION = "v1"


class HookPoint(StrEnum):
    """When a hook is asked."""

    BEFORE = "before"
    AFTER = "after"
    STREAM = "stream"


class HookKind(StrEnum):
    """How a hook is asked: over HTTP, or as a Python function in the gateway."""

    WEBHOOK = "webhook"
    PYTHON = "python"


class HookVerdict(StrEnum):
    """What became of asking. `skipped`: not asked, because it keeps failing."""

    PASS = "pass"  # noqa: S105 - a verdict, no password
    REFUSE = "refuse"
    FAILED = "failed"
    SKIPPED = "skipped"


class HookHop(NamedTuple):
    """What a hook said of one request, as its ledger row names it."""

    hook: str
    at: HookPoint
    verdict: HookVerdict


def spell_hop(hop: HookHop) -> str:
    """The name in `UsageEvent.hops_us`: `hook.<name>.<point>.<verdict>`."""
    return f"hook.{hop.hook}.{hop.at.value}.{hop.verdict.value}"


def read_hop(name: str) -> HookHop | None:
    """What `spell_hop` wrote; None for a hop that is no hook's."""
    kind, _, rest = name.partition(".")
    hook, *said = rest.rsplit(".", 2)
    if kind != "hook" or len(said) != 2:
        return None
    try:
        return HookHop(hook, HookPoint(said[0]), HookVerdict(said[1]))
    except ValueError:
        return None


class HookUse(msgspec.Struct, frozen=True):
    """One line of a policy: `hook` is asked at that point, for those classes (None: all).

    `fails_open`: a hook that fails, or does not answer within `deadline_s`, lets the call pass.
    """

    hook: str
    at: HookPoint
    deadline_s: float
    fails_open: bool
    classes: tuple[WorkClass, ...] | None = None


class HookEntry(msgspec.Struct, frozen=True):
    """What a hook is. Of a webhook where it listens, and its sealed secret; else its entry point.

    `path` begins with a slash and may hold a query; without `has_tls` only hosts that the operator
    allows inside are called.
    """

    name: str
    kind: HookKind
    host: str = ""
    port: int = 0
    path: str = ""
    has_tls: bool = True
    sealed_secret: bytes = b""
    entry_point: str = ""


class HookReport(msgspec.Struct, frozen=True):
    """How a hook does at one gateway since that started.

    `verdicts` counts by `HookVerdict`; `seconds` are sketch bins (index, count) of the answers of
    the last five to ten minutes; `breaker` is its phase. `error` is the last failure, without a
    word of a prompt; `error_at_ms` when that was, 0 for never.
    """

    verdicts: dict[str, int] = {}
    seconds: tuple[tuple[int, int], ...] = ()
    breaker: str = "closed"
    error: str = ""
    error_at_ms: int = 0


def signature(secret: bytes, timestamp: str, body: bytes) -> str:
    """Value of `x-headrace-signature`: `v1=` and the hex HMAC-SHA256 of `v1.<timestamp>.<body>`.

    `timestamp` is whole Unix seconds as text, as sent in `x-headrace-timestamp`: a receiver that
    refuses old ones cannot be played an old call again.
    """
    signed = b"%b.%b.%b" % (SIGNATURE_VERSION.encode(), timestamp.encode(), body)
    return f"{SIGNATURE_VERSION}={hmac.new(secret, signed, hashlib.sha256).hexdigest()}"
