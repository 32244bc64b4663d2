"""Learns bytes per token from what engines report, and shares it through the store."""

from collections.abc import Iterator
from typing import Final

import hiredis
import msgspec

from routing.contracts.enums import UsageSource
from routing.contracts.estimates import (
    KEPT_MS,
    MAX_MODELS,
    GatewayEstimates,
    decode_estimates,
    encode_estimates,
)
from routing.contracts.usage import UsageEvent
from routing.decision.estimate import TEMPLATE_TOKENS, Ask, Rates
from routing.store import keys
from routing.store.client import StoreAwayError
from routing.store.cluster import Store
from telemetry.stats.token_rates import DENSE_PRIOR, Tally, learnt, merged, rate_of, template_of

SHARE_EVERY_S: Final = 10.0


class Calibration:
    """Bytes per token of every model. `rates` and `observe` are called once a request.

    Own samples are kept apart from the others': a gateway publishes only its own, under its id, so
    it finds them again after a restart and nothing is counted twice.
    """

    def __init__(self, gateway_id: str) -> None:
        self._gateway_id = gateway_id
        self._own: dict[str, Tally] = {}
        self._all: dict[str, Tally] = {}
        self._rates: dict[tuple[str, float], Rates] = {}
        self._is_restored = False

    def rates(self, model: str, prior: float) -> Rates:
        """Bytes per token to estimate a prompt with: the model's `prior` until they are learnt."""
        found = self._rates.get((model, prior))
        if found is None:
            tally = self._all.get(model) or Tally()
            dense = rate_of(tally.dense, min(prior, DENSE_PRIOR))
            plain = rate_of(tally.plain, prior)
            template = template_of(tally.template, TEMPLATE_TOKENS)
            found = self._rates[model, prior] = Rates(plain, dense, not tally.plain, template)
        return found

    def observe(self, ask: Ask, event: UsageEvent) -> None:
        """Learn from an ended request whose engine reported what its text became."""
        if event.usage_source is not UsageSource.REPORTED or ask.images or ask.input_tokens:
            return
        tally = self._own.get(event.model)
        if tally is None:
            if len(self._own) >= MAX_MODELS:
                return
            tally = self._own[event.model] = Tally()
        dense = ask.dense_bytes
        counts = (ask.input_bytes - dense, dense, event.held_input_tokens, event.input_tokens)
        frame = ask.frame_tokens if ask.is_templated else None
        tally.observe(*counts, frame_tokens=frame)
        known = self._all.get(event.model)
        if known is None:
            known = self._all[event.model] = Tally()
        was_seen = bool(known.plain)
        # Until the next sharing counts it with all others.
        known.observe(*counts, frame_tokens=frame)
        if bool(known.plain) is not was_seen or event.input_tokens > event.held_input_tokens:
            self._rates.clear()

    async def share(self, store: Store, now_ms: int) -> None:
        """Take what all gateways know, tell what we know. A store that is away is no error."""
        if not store.is_ready:
            return
        try:
            found = await store.call("HGETALL", keys.ESTIMATES)
            if isinstance(found, list):
                self._take(list(_told(found[1::2], now_ms)))
                word = GatewayEstimates(self._gateway_id, now_ms, learnt(self._own))
                raw = encode_estimates(word)
                await store.call("HSET", keys.ESTIMATES, self._gateway_id, raw)
                known = {field.decode("ascii", "replace") for field in found[::2]}
                fresh = {word.gateway_id for word in _told(found[1::2], now_ms)}
                for gone in known - fresh - {self._gateway_id}:
                    await store.call("HDEL", keys.ESTIMATES, gone)
        except (StoreAwayError, hiredis.ReplyError):
            return

    def _take(self, words: list[GatewayEstimates]) -> None:
        if not self._is_restored:  # what this gateway said before its restart
            self._is_restored = True
            mine = [part for w in words if w.gateway_id == self._gateway_id for part in w.learnt]
            self._own = merged([*mine, *learnt(self._own)])
        others = [part for w in words if w.gateway_id != self._gateway_id for part in w.learnt]
        self._all = merged([*others, *learnt(self._own)])
        self._rates.clear()


def _told(raws: list[bytes], now_ms: int) -> Iterator[GatewayEstimates]:
    for raw in raws:
        try:
            word = decode_estimates(raw)
        except msgspec.MsgspecError:
            continue  # of another version of this program
        if now_ms - word.at_ms < KEPT_MS:
            yield word
