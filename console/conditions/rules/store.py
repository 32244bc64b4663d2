"""Conditions of the store, judged by what it answered."""

from collections.abc import Iterator

from console.conditions.rules import servers
from console.conditions.rules.condition import BAD, WARN, Condition, Rule, seconds, size
from console.conditions.rules.facts import Answer, Facts, GatewayFacts

PART = "store"
MEMORY_WARN_RATIO = 0.85
OUTAGE_DEFAULT = "local shares, by default at most 300 s"

_WORK_GOES_ON = "Gateways admit from local shares of each limit; usage waits in their journals."
_SAYS = {
    Answer.UNREACHABLE: ("away", "The store cannot be reached."),
    Answer.HANGING: ("hanging", "The store accepts connections and does not answer."),
    Answer.REFUSING: ("refusing", "The store does not let us in."),
    Answer.LOADING: ("loading", "The store is reading its log back."),
    Answer.READ_ONLY: ("read-only", "The store refuses writes."),
    Answer.FULL: ("full", "The store is out of memory and refuses writes."),
}
_NEXT = {
    Answer.UNREACHABLE: "Start it, or check REDIS_URL and the network.",
    Answer.HANGING: "Look at its process and its disk; a stopped one continues with `kill -CONT`.",
    Answer.REFUSING: "Check the password in REDIS_URL and its client limit.",
    Answer.LOADING: "Wait: it opens by itself.",
    Answer.READ_ONLY: "Point REDIS_URL at the primary, or free its disk.",
    Answer.FULL: "Raise `maxmemory`, or find out what fills it.",
}


def not_serving(facts: Facts) -> Iterator[Condition]:
    """It does not take our writes: the one condition that explains most others."""
    store = facts.store
    if store.answer is Answer.OK:
        return
    word, text = _SAYS[store.answer]
    said = f" The error: {store.error}." if store.error else ""
    process, step = servers.why(facts, servers.STORE)
    yield Condition(
        PART,
        word,
        BAD,
        f"{text}{process or said} {_WORK_GOES_ON}",
        outage_bound(facts.gateways),
        step or _NEXT[store.answer],
    )


def outage_bound(gateways: tuple[GatewayFacts, ...]) -> str:
    """The outage time of the gateway that closes first, as far as any of them says."""
    known = [gateway for gateway in gateways if gateway.away_left_s is not None]
    if not known:
        return OUTAGE_DEFAULT
    first = min(known, key=lambda gateway: gateway.away_left_s or 0.0)
    left_s, max_s = first.away_left_s or 0.0, first.away_max_s or 0.0
    if first.store_mode == "closed":
        return f"requests are refused (outage time {max_s:.0f} s)"
    return f"local shares, at most {max_s:.0f} s, {left_s:.0f} s left"


def nearly_full(facts: Facts) -> Iterator[Condition]:
    """Memory is about to run out: then it refuses writes, and gateways fall back."""
    used, most = facts.store.memory_bytes, facts.store.max_memory_bytes
    if facts.store.answer is Answer.OK and used and most and used / most >= MEMORY_WARN_RATIO:
        yield Condition(
            PART,
            "nearly full",
            WARN,
            f"The store uses {size(used)} of {size(most)}. Everything works.",
            "at 100 % it refuses writes and gateways admit from local shares",
            "Raise `maxmemory`, or find out what fills it.",
        )


def not_persistent(facts: Facts) -> Iterator[Condition]:
    """A restart would lose the live counters; they are rebuilt, which takes seconds."""
    store = facts.store
    if store.answer is Answer.OK and store.persistence_error:
        yield Condition(
            PART,
            "not saving",
            WARN,
            f"The store cannot write its log: {store.persistence_error}. Everything works.",
            "usage of the last moments also lies in the gateways' journals",
            "Free its disk: a restart now would rebuild the live counters from the ledger.",
        )


def slow(facts: Facts) -> Iterator[Condition]:
    """It answers, and later than a request should wait for it."""
    answer_s = facts.store.answer_s
    if facts.store.answer is Answer.OK and answer_s is not None and answer_s > 0.25:
        yield Condition(
            PART,
            "slow",
            WARN,
            f"The store took {seconds(answer_s)} to answer. Admission waits for it.",
            "a gateway waits at most 0.8 s, then admits from local shares",
            "Look for slow commands, swapping, and other work on its machine.",
        )


RULES: tuple[Rule, ...] = (not_serving, nearly_full, not_persistent, slow)
