"""Conditions of processes: dead, stopped, silent, flapping, behind, of another version."""

from collections.abc import Iterator

from console.conditions.rules import gateways, servers
from console.conditions.rules.condition import BAD, WARN, Condition, Rule, seconds
from console.conditions.rules.facts import Answer, Facts, ProcessFacts

EXPECTED = ("worker", "beat", "collector", "ledger")  # the console itself is asked
SILENT_AFTER_S = 10.0  # they report every 1 to 2 s
LAG_WARN_S = 10.0
FLAPPING_RESTARTS = 3
STEADY_AFTER_S = 60.0

_LOSS = {
    "console": "Pages and REST are not served; gateways serve as before.",
    "worker": "Jobs wait: replicas are not reconciled, changes do not reach the gateways.",
    "beat": "Scheduled jobs do not start; what is asked for by hand runs.",
    "collector": "Figures of replicas and slices stand still; gateways route on their own counts.",
    "ledger": "Usage waits in the store and in the gateways' journals; nothing is lost.",
    "postgres": "Gateways serve from their last snapshot; pages and jobs wait.",
    "valkey": "Gateways admit from local shares of each limit.",
    "traffic": "The demo's replay stands still; nothing else depends on it.",
}
_GATEWAY_LOSS = "Its usage is in its journal; other gateways serve, where there are any."
_BOUNDS = {
    "ledger": "20,000 entries a bucket wait in the store, then the journals",
    "postgres": "20,000 usage entries a bucket in the store, then the journals",
    "valkey": "local shares, by default at most 300 s",
}


def loss_of(name: str) -> str:
    """What is lost while a process does not run, and what goes on."""
    return _GATEWAY_LOSS if name.startswith("gateway") else _LOSS.get(name, "")


def supervisor(facts: Facts) -> Iterator[Condition]:
    """Nobody restarts what dies."""
    seen = facts.supervisor
    if seen.error:
        yield Condition(
            "state",
            "unreadable",
            WARN,
            f"{seen.error}. What runs goes on; ages and restarts are unknown.",
            "",
            "Repair or remove that file; `manage.py up` writes it again.",
        )
    elif seen.is_known and not seen.is_alive:
        yield Condition(
            "supervisor",
            "gone",
            WARN,
            "The supervisor is gone: what runs goes on, what dies is not started again.",
            "",
            "Run `manage.py up` again, or stop what is left with `manage.py down`.",
        )


def down(facts: Facts) -> Iterator[Condition]:
    """Dead, being restarted, or held by a signal."""
    for item in facts.processes:
        if servers.explains(facts, item.name):
            continue
        if item.is_stopped:
            yield _down(
                item,
                "stopped",
                "is held by a signal and does nothing",
                f"Continue it: `kill -CONT {item.pid}`.",
            )
        elif item.phase == "silent":
            yield _down(item, "silent", "lives and does not answer; the supervisor restarts it")
        elif item.phase == "backing off":
            wait_s = item.next_start_s
            when = "" if wait_s is None else f", starts again in {seconds(max(0.0, wait_s))}"
            yield _down(item, "down", f"is down ({item.last_reason or 'no reason known'}){when}")
        elif item.is_alive is False and item.phase not in ("", "stopped"):
            is_left = facts.supervisor.is_known and not facts.supervisor.is_alive
            after = "nobody starts it again" if is_left else "the supervisor starts it again"
            yield _down(item, "down", f"is dead; {after}")
        elif item.phase == "starting":
            why = f": {item.not_ready}" if item.not_ready else ""
            yield Condition(
                item.name, "starting", WARN, f"{item.name} is starting{why}. {loss_of(item.name)}"
            )


def _down(item: ProcessFacts, word: str, what: str, step: str = "") -> Condition:
    bound = _BOUNDS.get(item.name, "")
    log = f"See {item.log}." if item.log else "See its log."
    text = f"{item.name} {what}. {loss_of(item.name)}".strip()
    return Condition(item.name, word, BAD, text, bound, step or log)


def silent(facts: Facts) -> Iterator[Condition]:
    """It should report and does not, although the store would take the report."""
    if facts.store.answer is not Answer.OK:
        return
    explained = {condition.part for condition in down(facts)}
    fresh = {item.name for item in facts.processes if _is_fresh(item)}
    for item in facts.processes:
        expected = item.expects_heartbeat and item.is_alive and item.phase == "ready"
        if expected and not _is_fresh(item) and item.name not in explained:
            age_s = item.heartbeat_age_s
            since = "has not reported" if age_s is None else f"last reported {seconds(age_s)} ago"
            yield _down(item, "silent", f"lives and {since}")
            explained.add(item.name)
    for name in EXPECTED:
        if name not in fresh and name not in explained:
            yield Condition(
                name,
                "gone",
                BAD,
                f"{name} gives no sign of life. {loss_of(name)}",
                _BOUNDS.get(name, ""),
                "Start it: `manage.py up`, or its own command on its host.",
            )


def _is_fresh(item: ProcessFacts) -> bool:
    return item.heartbeat_age_s is not None and item.heartbeat_age_s <= SILENT_AFTER_S


def not_ready(facts: Facts) -> Iterator[Condition]:
    """It runs and says itself that it cannot serve, for no reason that is told already."""
    if any(servers.explains(facts, name) for name in (servers.STORE, servers.DATABASE)):
        return
    for item in facts.processes:
        if item.phase == "ready" and item.is_alive and not item.is_stopped and item.not_ready:
            yield Condition(
                item.name,
                "not ready",
                WARN,
                f"{item.name} runs and is not ready: {item.not_ready}.",
                "",
                f"See {item.log}." if item.log else "",
            )


def flapping(facts: Facts) -> Iterator[Condition]:
    """It comes up and dies again."""
    for item in facts.processes:
        is_fresh = item.up_s is not None and item.up_s < STEADY_AFTER_S
        if item.restarts >= FLAPPING_RESTARTS and is_fresh:
            yield Condition(
                item.name,
                "restarting",
                WARN,
                f"{item.name} was restarted {item.restarts} times, last because it was "
                f"{item.last_reason or 'gone'}. It runs now.",
                "starts are at most 30 s apart",
                f"See {item.log}." if item.log else "See its log.",
            )


def lag(facts: Facts) -> Iterator[Condition]:
    """It runs and does not keep up. The ledger has its own rule."""
    told = {"ledger"} if gateways.alive(facts) else {"ledger", "collector"}  # it waits for them
    for item in facts.processes:
        is_behind = item.lag_s is not None and item.lag_s > LAG_WARN_S
        if item.name not in told and is_behind and _is_fresh(item):
            yield Condition(
                item.name,
                "behind",
                WARN,
                f"{item.name} is {seconds(item.lag_s or 0.0)} behind its input.",
                "",
                f"See {item.log}." if item.log else "See its log.",
            )


def trouble(facts: Facts) -> Iterator[Condition]:
    """What a process itself complains of. The ledger's is told with its lag."""
    for item in facts.processes:
        if item.trouble and _is_fresh(item):
            yield Condition(
                item.name,
                "trouble",
                WARN,
                f"{item.name} says: {item.trouble}.",
                _BOUNDS.get(item.name, ""),
                f"See {item.log}." if item.log else "See its log.",
            )


def version(facts: Facts) -> Iterator[Condition]:
    """It was not restarted after an upgrade."""
    for item in facts.processes:
        is_other = item.version and facts.code_version and item.version != facts.code_version
        if is_other and item.expects_heartbeat and _is_fresh(item):
            yield Condition(
                item.name,
                "other version",
                WARN,
                f"{item.name} runs version {item.version}, the code here is {facts.code_version}. "
                "Versions run beside each other during an upgrade.",
                "",
                "Restart it, or `manage.py up` again.",
            )


RULES: tuple[Rule, ...] = (
    supervisor, down, silent, not_ready, flapping, lag, trouble, version,
)  # fmt: skip
