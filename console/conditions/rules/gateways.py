"""Conditions of gateways, each judged by its own last word."""

from collections.abc import Iterator

from console.conditions.rules.condition import BAD, STALE, WARN, Condition, Rule, seconds
from console.conditions.rules.facts import Answer, Facts, GatewayFacts
from console.conditions.rules.store import outage_bound

GONE_AFTER_S = 10.0  # they report every second
ACK_BEHIND = 1  # a snapshot that is one behind is being swapped right now


def alive(facts: Facts) -> list[GatewayFacts]:
    """Those that reported lately."""
    return [gateway for gateway in facts.gateways if gateway.age_s <= GONE_AFTER_S]


def none_reports(facts: Facts) -> Iterator[Condition]:
    """Nobody serves, or nobody can say so because the store is away."""
    if alive(facts):
        return
    if facts.store.answer is not Answer.OK:
        yield Condition(
            "gateways",
            "unknown",
            STALE,
            "Gateways report through the store, which does not answer; they go on by themselves.",
            "",
            "Ask a gateway's own port: GET /readyz.",
        )
        return
    yield Condition(
        "gateways",
        "none",
        BAD,
        "No gateway reports: nothing is served.",
        "usage of what was served lies in the store and in the journals",
        "Start one: `manage.py up`, or `manage.py gateway` on each host.",
    )


def gone(facts: Facts) -> Iterator[Condition]:
    """One that reported and stopped. Its entry is forgotten after an hour."""
    if facts.store.answer is not Answer.OK:
        return  # nobody's entry is renewed
    told = {item.name for item in facts.processes if item.phase not in ("", "ready")}
    for gateway in facts.gateways:
        if gateway.age_s > GONE_AFTER_S and f"gateway-{gateway.gateway_id}" not in told:
            others = "The others serve." if alive(facts) else "Nobody serves."
            yield Condition(
                f"gateway {gateway.gateway_id}",
                "gone",
                BAD,
                f"Gateway {gateway.gateway_id} last reported {seconds(gateway.age_s)} ago. "
                f"{others}",
                "its reservations end by themselves when their leases do; its journal keeps usage",
                "See its log. If it was removed on purpose, this goes after an hour.",
            )


def refusing(facts: Facts) -> Iterator[Condition]:
    """The store is away for longer than the policy allows: said once for all of them."""
    here = alive(facts)
    closed = [gateway for gateway in here if gateway.store_mode == "closed"]
    if closed and facts.store.answer is not Answer.OK:
        yield Condition(
            "gateways",
            "closed",
            BAD,
            f"{len(closed)} of {len(here)} gateways refuse requests: the store is away and the "
            "policy's outage time is over.",
            outage_bound(tuple(closed)),
            "Bring the store back: they admit again by themselves.",
        )


def without_store(facts: Facts) -> Iterator[Condition]:
    """It alone cannot reach the store, and admits from local shares or not at all."""
    if facts.store.answer is not Answer.OK:
        return  # the store's own condition says it, with the time left
    for gateway in alive(facts):
        name = f"gateway {gateway.gateway_id}"
        if gateway.store_mode == "degraded":
            yield Condition(
                name,
                "degraded",
                WARN,
                f"Gateway {gateway.gateway_id} runs without the store and admits from local "
                "shares of each limit.",
                outage_bound((gateway,)),
                "Bring the store back: it returns to shared limits by itself.",
            )
        elif gateway.store_mode == "closed" and gateway.snapshot_number:
            yield Condition(
                name,
                "closed",
                BAD,
                f"Gateway {gateway.gateway_id} refuses requests: it has been without the "
                "store for longer than the policy's outage time.",
                outage_bound((gateway,)),
                "Bring the store back: it admits again by itself.",
            )


def journal(facts: Facts) -> Iterator[Condition]:
    """Its disk does not keep up: answered requests are in memory and in the store only."""
    for gateway in alive(facts):
        if gateway.is_journal_behind:
            yield Condition(
                f"gateway {gateway.gateway_id}",
                "journal behind",
                WARN,
                f"Gateway {gateway.gateway_id} cannot write its journal as fast as it serves: "
                f"{gateway.journal_pending} entries wait. It serves; usage goes to the store.",
                "8 MiB of entries wait in memory; while the store is also away it refuses",
                "Look at the disk of the state directory: full, or hanging.",
            )


def snapshot(facts: Facts) -> Iterator[Condition]:
    """It serves by an older policy, or by none."""
    newest = facts.store.snapshot_number
    for gateway in alive(facts):
        if gateway.state == "starting":
            is_early = newest is None
            yield Condition(
                f"gateway {gateway.gateway_id}",
                "no policy",
                WARN,
                f"Gateway {gateway.gateway_id} has no snapshot yet and refuses every request.",
                "",
                "Publish a policy." if is_early else "Wait a second; if it stays, see its log.",
            )
        elif newest is not None and gateway.snapshot_number < newest - ACK_BEHIND:
            yield Condition(
                f"gateway {gateway.gateway_id}",
                "behind",
                WARN,
                f"Gateway {gateway.gateway_id} runs snapshot {gateway.snapshot_number}, newest is "
                f"{newest}. It serves by the older one.",
                "",
                "See its log for why it did not take the newer one.",
            )


def trouble(facts: Facts) -> Iterator[Condition]:
    """What a gateway itself complains of."""
    for gateway in alive(facts):
        if gateway.trouble:
            yield Condition(
                f"gateway {gateway.gateway_id}",
                "trouble",
                WARN,
                f"Gateway {gateway.gateway_id} says: {gateway.trouble}.",
                "",
                "See its log.",
            )


def version(facts: Facts) -> Iterator[Condition]:
    """It was not restarted after an upgrade."""
    for gateway in alive(facts):
        if facts.code_version and gateway.version and gateway.version != facts.code_version:
            yield Condition(
                f"gateway {gateway.gateway_id}",
                "other version",
                WARN,
                f"Gateway {gateway.gateway_id} runs version {gateway.version}, the code here is "
                f"{facts.code_version}. Versions run beside each other during an upgrade.",
                "",
                "Restart it: it drains on SIGTERM.",
            )


RULES: tuple[Rule, ...] = (
    none_reports, gone, refusing, without_store, journal, snapshot, trouble, version,
)  # fmt: skip
