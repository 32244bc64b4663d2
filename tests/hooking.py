"""Hooks of a test: a guard on real sockets, an installed package of Python hooks, policy lines."""

import hmac
import json
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

from routing.contracts.hooks import HookEntry, HookKind, HookPoint, HookUse
from routing.contracts.sealing import hook_purpose, seal
from tests.stack import PEPPER
from tests.upstream import Script, Seen, json_script

SECRET = "the-secret-of-the-guard-of-tests"
MODULE = """
import threading

def refuse_word(call):
    return "no such words" if "forbidden" in str(call["request"]) else None

def hang(call):
    threading.Event().wait()

def fail(call):
    raise ValueError(f"the prompt was {call}")

def unsure(call):
    return True

async def wait(call):
    return None if call["tenant"] == "acme" else "who?"

not_a_function = 3
"""
NAMES = ("refuse_word", "hang", "fail", "unsure", "wait", "not_a_function")


def install(folder: Path) -> str:
    """A distribution with hooks, as pip leaves it in a folder of the path; that folder."""
    (folder / "guards_of_tests.py").write_text(MODULE)
    facts = folder / "guards_of_tests-1.0.dist-info"
    facts.mkdir(parents=True)
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: guards-of-tests\nVersion: 1.0\n")
    points = "".join(f"{name} = guards_of_tests:{name}\n" for name in NAMES)
    (facts / "entry_points.txt").write_text(
        f"[headrace.hooks]\n{points}broken = no_such_module:x\n"
    )
    return str(folder)


def webhook(name: str, address: tuple[str, int], secret: str = SECRET, **changes: Any) -> HookEntry:
    """A hook at an address, without TLS."""
    sealed = seal(PEPPER.encode(), hook_purpose(name), secret, b"0123456789ab")
    fields: dict[str, Any] = {"path": "/check?v=1", "has_tls": False, "sealed_secret": sealed}
    return HookEntry(name, HookKind.WEBHOOK, *address, **fields | changes)


def python(name: str, entry_point: str) -> HookEntry:
    """A hook of the package that `install` made."""
    return HookEntry(name, HookKind.PYTHON, entry_point=entry_point)


def use(name: str, at: str = "before", *, ms: int = 5000, fails_open: bool = False) -> HookUse:
    """A line of the policy; generous unless said."""
    return HookUse(name, HookPoint(at), ms / 1000, fails_open)


def said(verdict: str, reason: str = "") -> Script:
    """A guard's answer."""
    return json_script({"verdict": verdict, "reason": reason})


def signed(seen: Seen, secret: str = SECRET) -> bool:
    """Whether a call is signed with the secret: a receiver's own few lines."""
    timestamp = seen.header("x-headrace-timestamp") or ""
    body = f"v1.{timestamp}.".encode() + seen.body
    expected = "v1=" + hmac.new(secret.encode(), body, sha256).hexdigest()
    return hmac.compare_digest(expected, seen.header("x-headrace-signature") or "")


def if_text(word: str) -> Callable[[Seen], Script]:
    """A guard that refuses a stream whose text has the word, also where it came in two pieces."""

    def choose(seen: Seen) -> Script:
        whole = "".join(one["before"] + one["text"] for one in json.loads(seen.body)["choices"])
        return said("refuse", "not that word") if word in whole else said("pass")

    return choose
