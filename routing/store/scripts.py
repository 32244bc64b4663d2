"""The store's scripts: called by digest, loaded again when the server has forgotten them.

A server forgets its scripts when it restarts or is told `SCRIPT FLUSH`. It then answers NOSCRIPT,
having run nothing, so the same call may be sent again with its source. `EVAL` also loads it.
"""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import redis

UNKNOWN_SCRIPT: Final = "NOSCRIPT"
_INSIDE: Final = b"--INSIDE\n"


@dataclass(frozen=True, slots=True)
class Script:
    """One script: its source and the SHA-1 digest by which servers know it.

    `evalsha_head` and `eval_head` are wire bytes of `EVALSHA digest 1` and `EVAL source 1` as
    five-part commands; key and argument follow.
    """

    name: str
    source: bytes
    digest: bytes
    evalsha_head: bytes
    eval_head: bytes


def _read(name: str) -> Script:
    return _script(name, _source(name))


def _around(name: str, inside: Script) -> Script:
    """A script that runs another one: `once.lua`, then `<name>.lua` with the other's source in it.

    Scripts cannot call scripts, and those without an idempotency key must not pay for the rest.
    """
    return _script(name, _source("once") + _source(name).replace(_INSIDE, inside.source))


def _around_alone(name: str, inside: Script) -> Script:
    """The same without the head that idempotency keys share."""
    return _script(name, _source(name).replace(_INSIDE, inside.source))


def _of_task(name: str, inside: Script) -> Script:
    """The same for a call of a capped task: `task.lua`, then `<name>.lua` around the other's."""
    return _script(name, _source("task") + _source(name).replace(_INSIDE, inside.source))


def _with_fields(name: str) -> Script:
    """A script that changes counters one by one."""
    return _script(name, _source("field") + _source(name))


def _source(name: str) -> bytes:
    return (Path(__file__).parent / "scripts" / f"{name}.lua").read_bytes()


def _script(name: str, source: bytes) -> Script:
    digest = hashlib.sha1(source, usedforsecurity=False).hexdigest().encode()
    evalsha_head = b"*5\r\n$7\r\nEVALSHA\r\n$40\r\n%b\r\n$1\r\n1\r\n" % digest
    eval_head = b"*5\r\n$4\r\nEVAL\r\n$%d\r\n%b\r\n$1\r\n1\r\n" % (len(source), source)
    return Script(name, source, digest, evalsha_head, eval_head)


RESERVE: Final = _read("reserve")
SETTLE: Final = _read("settle")
LEASE: Final = _with_fields("lease")
COUNTERS: Final = _with_fields("counters")
CREDITS: Final = _read("credits")
ONCE_RESERVE: Final = _around("once_reserve", RESERVE)
ONCE_SETTLE: Final = _around("once_settle", SETTLE)
USE_RESERVE: Final = _around_alone("use_reserve", RESERVE)
USE_SETTLE: Final = _around_alone("use_settle", SETTLE)
TASK_RESERVE: Final = {
    inside: _of_task("task_reserve", inside) for inside in (RESERVE, ONCE_RESERVE, USE_RESERVE)
}
TASK_SETTLE: Final = {
    inside: _of_task("task_settle", inside) for inside in (SETTLE, ONCE_SETTLE, USE_SETTLE)
}
ALL: Final = (
    RESERVE, SETTLE, LEASE, COUNTERS, CREDITS, ONCE_RESERVE, ONCE_SETTLE, USE_RESERVE, USE_SETTLE,
    *TASK_RESERVE.values(), *TASK_SETTLE.values(),
)  # fmt: skip


def loading(*scripts: Script) -> list[tuple[bytes | str | int, ...]]:
    """Commands that make a server know these scripts by their digests."""
    return [("SCRIPT", "LOAD", script.source) for script in scripts]


def run_script(client: "redis.Redis", script: Script, key: str, argument: bytes) -> object:
    """Run a script on a sync client; `key` is the bucket's meta key, `argument` msgpack.

    Replies as the server gives them (bytes, int, list). Raises `redis.RedisError`.
    """
    try:
        reply: object = client.evalsha(script.digest.decode(), 1, key, argument)
    except redis.exceptions.NoScriptError:
        reply = client.eval(script.source.decode(), 1, key, argument)
    return reply
