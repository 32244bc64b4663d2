"""The hooks of the policy in force: which are asked about a call, in order, and what that means."""

import asyncio
import logging
import time
from collections.abc import Callable, Iterator, Sequence

from routing.contracts.hooks import (
    HookEntry,
    HookHop,
    HookKind,
    HookPoint,
    HookReport,
    HookUse,
    HookVerdict,
    spell_hop,
)
from routing.contracts.reach import Reach
from routing.contracts.sealing import SealError, hook_purpose, open_sealed
from routing.contracts.snapshot import Snapshot
from routing.decision.types import Reason, Refusal
from routing.gateway.exchange import Exchange
from routing.gateway.hooks.asked import Answer, AskedHook, Caller
from routing.gateway.hooks.python import PythonHook
from routing.gateway.hooks.webhook import Webhook

log = logging.getLogger(__name__)

MAX_REASON_CHARS = 200  # of what a hook says to callers
Done = Callable[[Refusal | None], None]


class Hooks:
    """Every hook that the snapshot names, by name; owned by the event loop."""

    def __init__(self, secret: bytes, reach: Reach, now_ms: Callable[[], int]) -> None:
        """`secret` opens what the console has sealed; `reach` says who may be called."""
        self._secret = secret
        self._reach = reach
        self._now_ms = now_ms
        self._hooks: dict[str, AskedHook] = {}
        self._running: set[asyncio.Task[Refusal | None]] = set()

    def __iter__(self) -> Iterator[tuple[str, AskedHook]]:
        """By name, for the metrics."""
        return iter(sorted(self._hooks.items()))

    def take_snapshot(self, snapshot: Snapshot, *, is_serving: bool) -> None:
        """Follow the snapshot. Before the gateway serves, Python hooks are loaded on the spot."""
        for name in [name for name in self._hooks if name not in snapshot.hooks]:
            self._hooks.pop(name).caller.close()
        for name, entry in snapshot.hooks.items():
            known = self._hooks.get(name)
            if known is None:
                self._hooks[name] = AskedHook(entry, self._caller(entry, is_serving=is_serving))
            elif known.entry != entry:
                known.become(entry, self._caller(entry, is_serving=is_serving))

    def _caller(self, entry: HookEntry, *, is_serving: bool) -> Caller:
        if entry.kind is HookKind.PYTHON:
            hook = PythonHook(entry.entry_point)
            if is_serving:
                hook.load_soon()
            else:
                hook.load()
            return hook
        try:
            purpose = hook_purpose(entry.name)
            secret = open_sealed(self._secret, purpose, entry.sealed_secret).encode()
        except SealError:
            log.error("the secret of the hook %s cannot be opened", entry.name)  # noqa: TRY400
            secret = b""
        return Webhook(entry, secret, self._reach)

    # -- asking

    def judge(
        self, exchange: Exchange, uses: Sequence[HookUse], payload: bytes, done: Done
    ) -> None:
        """Ask each in turn; `done` gets the first refusal, or None. It runs to its end, bounded."""
        task = asyncio.get_running_loop().create_task(self._judge(exchange, uses, payload))
        self._running.add(task)
        task.add_done_callback(lambda ended: self._ended(ended, exchange, done))

    def _ended(self, task: "asyncio.Task[Refusal | None]", exchange: Exchange, done: Done) -> None:
        self._running.discard(task)
        if task.cancelled():
            return
        if (error := task.exception()) is not None:
            # A fault of ours: nothing passes for it.
            log.error("asking hooks failed: %s", type(error).__name__)
            done(_failure("", None))
            return
        done(task.result())

    async def _judge(
        self, exchange: Exchange, uses: Sequence[HookUse], payload: bytes
    ) -> Refusal | None:
        for use in uses:
            left_s = exchange.deadlines.total_s - (time.monotonic() - exchange.arrived_s)
            if left_s <= 0:
                message = f"Not finished within {exchange.deadlines.total_s:g} s."
                return Refusal(Reason.DEADLINE_EXCEEDED, message, limit="total_s")
            hook = self._hooks.get(use.hook)
            if hook is None:  # its row is gone, or is on its way
                answer = Answer(HookVerdict.FAILED)
            else:
                answer = await hook.ask(payload, min(use.deadline_s, left_s), self._now_ms())
            _note(exchange, use, answer)
            if answer.verdict is HookVerdict.REFUSE:
                return _refusal(use.hook, answer.reason)
            if answer.verdict is not HookVerdict.PASS and not use.fails_open:
                return _failure(use.hook, answer.wait_s)
        return None

    # -- housekeeping

    def reports(self, now_s: float) -> dict[str, HookReport]:
        """How each does, for the console."""
        return {name: hook.report(now_s) for name, hook in self._hooks.items()}

    def close_idle(self, now_s: float) -> None:
        """Close connections that have been idle for too long."""
        for hook in self._hooks.values():
            hook.caller.close_idle(now_s)

    def close(self) -> None:
        """The gateway ends."""
        for task in list(self._running):
            task.cancel()
        for hook in self._hooks.values():
            hook.caller.close()


def uses_at(exchange: Exchange, *points: HookPoint) -> tuple[HookUse, ...]:
    """The lines of the call's own policy that ask about it at those points, in order."""
    return tuple(
        use
        for use in exchange.snapshot.policy.hooks
        if use.at in points and (use.classes is None or exchange.work_class in use.classes)
    )


def _note(exchange: Exchange, use: HookUse, answer: Answer) -> None:
    """Verdict and time (in microseconds, of all its calls) for the request's own record."""
    if exchange.hops_us is None:
        exchange.hops_us = {}
    name = spell_hop(HookHop(use.hook, use.at, answer.verdict))
    exchange.hops_us[name] = exchange.hops_us.get(name, 0) + round(answer.taken_s * 1e6)


def _refusal(hook: str, reason: str) -> Refusal:
    """What a hook says is shown to the caller: one short line, or nothing."""
    said = " ".join("".join(c if c.isprintable() else " " for c in reason).split())
    said = said[:MAX_REASON_CHARS]
    message = f"The hook {hook} refused this{f': {said}' if said else '.'}"
    return Refusal(Reason.HOOK_REFUSED, message, limit=hook)


def _failure(hook: str, wait_s: float | None) -> Refusal:
    whose = f"The hook {hook}" if hook else "A hook"
    message = f"{whose} could not judge this, and nothing passes without it. Send it again."
    return Refusal(Reason.HOOK_FAILED, message, wait_s, limit=hook)
