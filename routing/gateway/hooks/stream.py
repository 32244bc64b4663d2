"""A stream under watch: what came is held until every hook of the stream has passed its text.

One question runs at a time; what comes meanwhile waits for the next one, which asks about all of it
at once. When too much waits, the upstream is not read.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from routing.contracts.hooks import HookPoint, HookUse
from routing.decision.types import Refusal
from routing.gateway.dialects.heard import heard
from routing.gateway.exchange import Exchange, Step
from routing.gateway.hooks.keeper import Hooks, uses_at
from routing.gateway.hooks.payloads import of_deltas

if TYPE_CHECKING:
    from routing.gateway.relay import Relay

HELD_BYTES = 64 << 10  # unjudged bytes of a stream above which its upstream waits
TAIL_CHARS = 1024  # of a choice's earlier text, told again: a word may come in two pieces


class Watch:
    """What is held back of one stream. Pieces are whole events, as `SseScanner` gives them."""

    __slots__ = (
        "_exchange",
        "_held",
        "_held_bytes",
        "_hooks",
        "_is_asking",
        "_relay",
        "_round",
        "_tails",
        "_then",
        "_uses",
    )

    def __init__(self, hooks: Hooks, exchange: Exchange, uses: tuple[HookUse, ...]) -> None:
        self._hooks = hooks
        self._exchange = exchange
        self._uses = uses
        self._relay: Relay | None = None
        self._held: list[bytes] = []
        self._held_bytes = 0
        self._is_asking = False
        self._round = 0  # answers to questions of an earlier try are not heard
        self._tails: dict[int, str] = {}
        self._then: Callable[[], None] | None = None

    def feed(self, relay: "Relay", out: bytes) -> None:
        """More has come of the stream that `relay` passes on."""
        self._relay = relay
        self._held.append(out)
        self._held_bytes += len(out)
        if self._held_bytes > HELD_BYTES:
            relay.flow.hold()
        if not self._is_asking:
            self._go_on()

    def when_clear(self, then: Callable[[], None]) -> None:
        """Call `then` once nothing is held any more: now, or never if a hook stops the stream."""
        self._then = then
        if not self._is_asking:
            self._go_on()

    def reset(self) -> None:
        """The try has failed before anything was passed on: the next one begins anew."""
        self._round += 1
        self._held.clear()
        self._held_bytes = 0
        self._is_asking = False
        self._tails.clear()
        self._then = None

    def _go_on(self) -> None:
        if self._held:
            batch = b"".join(self._held)
            self._held.clear()
            self._held_bytes = 0
            choices = self._choices(heard(batch))
            if choices:
                self._ask(batch, choices)
                return
            self._pass_on(batch)
        if self._then is not None and self._exchange.step is not Step.ENDED:
            then, self._then = self._then, None
            then()

    def _choices(self, texts: dict[int, str]) -> list[dict[str, object]]:
        choices: list[dict[str, object]] = []
        for index, text in sorted(texts.items()):
            before = self._tails.get(index, "")
            choices.append({"index": index, "text": text, "before": before})
            self._tails[index] = (before + text)[-TAIL_CHARS:]
        return choices

    def _ask(self, batch: bytes, choices: list[dict[str, object]]) -> None:
        self._is_asking = True
        asked = self._round

        def done(refusal: Refusal | None) -> None:
            if asked != self._round or self._exchange.step is Step.ENDED:
                return
            self._is_asking = False
            if refusal is not None:
                self._stop(refusal)
                return
            self._pass_on(batch)
            self._go_on()

        payload = of_deltas(self._exchange, choices)
        self._hooks.judge(self._exchange, self._uses, payload, done)

    def _pass_on(self, batch: bytes) -> None:
        relay = self._relay
        if relay is None:
            return
        if not self._exchange.is_gone:
            relay.deliver(batch)
        relay.flow.let_go()

    def _stop(self, refusal: Refusal) -> None:
        relay = self._relay
        self.reset()
        if relay is not None:
            relay.stopped(refusal)


def watch_of(hooks: Hooks, exchange: Exchange) -> Watch | None:
    """The watch over a call's stream, if it is to be one and hooks look at it."""
    if not exchange.call.is_stream or not exchange.operation.generates:
        return None
    uses = uses_at(exchange, HookPoint.STREAM)
    return Watch(hooks, exchange, uses) if uses else None
