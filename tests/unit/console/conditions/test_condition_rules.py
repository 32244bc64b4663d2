"""Which parts are named degraded, with which bound and next step."""

from dataclasses import replace

import pytest

from console.conditions.rules import MAX_SHOWN, conditions_of
from console.conditions.rules.condition import BAD, STALE, WARN
from console.conditions.rules.facts import (
    Answer,
    DatabaseFacts,
    DiskFacts,
    EngineFacts,
    Facts,
    GatewayFacts,
    ProcessFacts,
    StoreFacts,
    SupervisorFacts,
)

GIB = 2**30


def process(name: str, **changes: object) -> ProcessFacts:
    values = {
        "name": name, "pid": 7, "phase": "ready", "is_alive": True, "up_s": 600.0,
        "heartbeat_age_s": 0.5, "version": "0.1.0", "log": f"logs/{name}.log",
    }  # fmt: skip
    return ProcessFacts(**{**values, **changes})


def healthy(**changes: object) -> Facts:
    """Everything runs; `changes` replace fields."""
    names = ("console", "worker", "beat", "collector", "ledger")
    servers = (
        process("postgres", expects_heartbeat=False, heartbeat_age_s=None, version="18.1"),
        process("valkey", expects_heartbeat=False, heartbeat_age_s=None, version="9.0"),
    )
    facts = Facts(
        supervisor=SupervisorFacts(is_known=True, is_alive=True, phase="ready"),
        processes=(*servers, *(process(name) for name in names)),
        gateways=(GatewayFacts("g0", snapshot_number=7, version="0.1.0"),),
        store=StoreFacts(
            answer_s=0.001, memory_bytes=2**20, max_memory_bytes=2**30, snapshot_number=7,
            clock_offset_s=0.01, is_persistent=True,
        ),
        database=DatabaseFacts(answer_s=0.001, connections=20, max_connections=100),
        disks=(DiskFacts("state", "/s", 50 * GIB, 100 * GIB),),
        engines=(EngineFacts("p-0", is_alive=True),),
        code_version="0.1.0",
    )  # fmt: skip
    return replace(facts, **changes)


def with_process(name: str, **changes: object) -> Facts:
    facts = healthy()
    changed = [replace(it, **changes) if it.name == name else it for it in facts.processes]
    return replace(facts, processes=tuple(changed))


def with_gateway(**changes: object) -> Facts:
    facts = healthy()
    return replace(facts, gateways=(replace(facts.gateways[0], **changes),))


def with_store(**changes: object) -> Facts:
    facts = healthy()
    return replace(facts, store=replace(facts.store, **changes))


def with_database(**changes: object) -> Facts:
    return healthy(database=DatabaseFacts(**changes))


def named(facts: Facts) -> list[tuple[str, str, str]]:
    return [(it.part, it.word, it.tone) for it in conditions_of(facts)]


def test_nothing_is_said_when_all_is_well() -> None:
    assert conditions_of(healthy()) == ()


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        (with_process("worker", phase="backing off", is_alive=None, pid=None, last_reason="killed"
                      " by SIGKILL", next_start_s=4.0), ("worker", "down", BAD)),
        (with_process("worker", is_alive=False), ("worker", "down", BAD)),
        (with_process("worker", is_stopped=True), ("worker", "stopped", BAD)),
        (with_process("postgres", is_stopped=True), ("postgres", "stopped", BAD)),
        (with_process("worker", heartbeat_age_s=11.0), ("worker", "silent", BAD)),
        (with_process("beat", phase="", is_alive=None, heartbeat_age_s=None),
         ("beat", "gone", BAD)),
        (with_process("worker", phase="starting", heartbeat_age_s=0.1),
         ("worker", "starting", WARN)),
        (with_process("console", not_ready="/readyz answers 503"),
         ("console", "not ready", WARN)),
        (with_process("beat", restarts=3, up_s=5.0), ("beat", "restarting", WARN)),
        (with_process("collector", lag_s=11.0), ("collector", "behind", WARN)),
        (with_process("collector", trouble="cannot fold"), ("collector", "trouble", WARN)),
        (with_process("worker", version="0.0.9"), ("worker", "other version", WARN)),
        (with_process("ledger", lag_s=11.0), ("ledger", "behind", WARN)),
        (with_process("ledger", lag_s=301.0), ("ledger", "behind", BAD)),
        (with_process("ledger", counts={"parked": 2}), ("ledger", "parked", WARN)),
        (with_database(differences=3), ("ledger", "differing", WARN)),
        (with_process("ledger", counts={"rebuilding": 90}), ("ledger", "rebuilding", WARN)),
        (with_process("ledger", counts={"gaps": 3, "gap_since_s": 1_790_000_000,
                      "gap_until_s": 1_790_000_600}), ("ledger", "went back", BAD)),
        (with_gateway(age_s=10.5), ("gateway g0", "gone", BAD)),
        (with_gateway(store_mode="degraded"), ("gateway g0", "degraded", WARN)),
        (with_gateway(store_mode="closed"), ("gateway g0", "closed", BAD)),
        (with_gateway(is_journal_behind=True), ("gateway g0", "journal behind", WARN)),
        (with_gateway(snapshot_number=5), ("gateway g0", "behind", WARN)),
        (with_gateway(state="starting", snapshot_number=0), ("gateway g0", "no policy", WARN)),
        (with_gateway(trouble="snapshot unreadable"), ("gateway g0", "trouble", WARN)),
        (with_gateway(version="0.0.9"), ("gateway g0", "other version", WARN)),
        (with_store(answer=Answer.UNREACHABLE), ("store", "away", BAD)),
        (with_store(answer=Answer.HANGING), ("store", "hanging", BAD)),
        (with_store(answer=Answer.LOADING), ("store", "loading", BAD)),
        (with_store(answer=Answer.READ_ONLY), ("store", "read-only", BAD)),
        (with_store(answer=Answer.FULL), ("store", "full", BAD)),
        (with_store(answer=Answer.REFUSING), ("store", "refusing", BAD)),
        (with_store(memory_bytes=900 * 2**20), ("store", "nearly full", WARN)),
        (with_store(persistence_error="no space"), ("store", "not saving", WARN)),
        (with_store(answer_s=0.6), ("store", "slow", WARN)),
        (with_store(clock_offset_s=-3.0), ("clock", "off", WARN)),
        (with_store(clock_offset_s=40.0), ("clock", "off", BAD)),
        (with_database(answer=Answer.UNREACHABLE), ("postgres", "away", BAD)),
        (with_database(answer=Answer.HANGING), ("postgres", "hanging", BAD)),
        (with_database(answer=Answer.LOADING), ("postgres", "recovering", BAD)),
        (with_database(answer=Answer.REFUSING), ("postgres", "refusing", BAD)),
        (with_database(missing_migrations=("console.0004",)), ("postgres", "schema behind", BAD)),
        (with_database(unknown_migrations=("console.9",)), ("postgres", "schema ahead", WARN)),
        (with_database(is_schema_damaged=True), ("postgres", "schema damaged", BAD)),
        (with_database(connections=90, max_connections=100), ("postgres", "connections", WARN)),
        (healthy(disks=(DiskFacts("state", "/s", GIB, 100 * GIB),)), ("disk state", "low", WARN)),
        (healthy(disks=(DiskFacts("state", "/s", 2**20, GIB),)), ("disk state", "full", BAD)),
        (healthy(disks=(DiskFacts("state", "/s", error="Read-only file system"),)),
         ("disk state", "unwritable", BAD)),
        (healthy(engines=(EngineFacts("p-0", is_alive=False),)), ("engines", "dead", WARN)),
        (healthy(supervisor=SupervisorFacts(is_known=True)), ("supervisor", "gone", WARN)),
        (healthy(supervisor=SupervisorFacts(error="cannot read processes.json")),
         ("state", "unreadable", WARN)),
    ],
)  # fmt: skip
def test_each_fault_is_named_with_its_tone(facts: Facts, expected: tuple[str, str, str]) -> None:
    assert expected in named(facts)
    others = {part for part, _, _ in named(facts)} - {expected[0]}
    assert others <= {"gateways"}, "one fault is not told as faults of healthy parts"


@pytest.mark.parametrize(
    "facts",
    [
        healthy(disks=(DiskFacts("state", "/s", GIB, 4 * GIB),)),  # small disk, a quarter free
        healthy(disks=(DiskFacts("state", "/s", 9 * GIB, 100 * GIB),)),  # large disk, 9 GiB free
        with_gateway(snapshot_number=6),  # one behind is being swapped
        with_process("collector", lag_s=9.0),
        with_process("beat", restarts=5, up_s=61.0),
        with_store(max_memory_bytes=None, memory_bytes=8 * GIB),
        with_store(clock_offset_s=1.9),
        healthy(database=None),  # not asked is not away
        healthy(supervisor=SupervisorFacts()),  # nothing supervises here: other hosts may
        with_process("worker", phase="", is_alive=None, pid=None),  # reports from another host
    ],
)
def test_what_is_within_its_bound_is_no_condition(facts: Facts) -> None:
    assert named(facts) == []


def test_a_lost_store_names_the_time_that_is_left() -> None:
    facts = with_store(answer=Answer.UNREACHABLE, error="Connection refused")
    facts = replace(
        facts,
        gateways=(
            GatewayFacts("g0", store_mode="degraded", away_s=88.0, away_max_s=300.0),
            GatewayFacts("g1", store_mode="degraded", away_s=10.0, away_max_s=300.0),
        ),
    )
    first = conditions_of(facts)[0]
    assert (first.part, first.bound) == ("store", "local shares, at most 300 s, 212 s left")
    assert "Connection refused" in first.text


def test_a_closed_gateway_says_that_it_refuses() -> None:
    facts = with_gateway(store_mode="closed", snapshot_number=7, away_s=310.0, away_max_s=300.0)
    [found] = conditions_of(facts)
    assert found.bound == "requests are refused (outage time 300 s)"


def test_a_store_that_is_away_is_not_told_as_silent_processes() -> None:
    facts = with_store(answer=Answer.HANGING)
    silent = [replace(item, heartbeat_age_s=None) for item in facts.processes]
    found = named(replace(facts, processes=tuple(silent), gateways=()))
    assert found == [("store", "hanging", BAD), ("gateways", "unknown", STALE)]


def test_a_backing_off_process_says_why_and_when() -> None:
    facts = with_process(
        "ledger", phase="backing off", pid=None, is_alive=None, heartbeat_age_s=None,
        last_reason="killed by SIGKILL", next_start_s=4.0,
    )  # fmt: skip
    [found] = conditions_of(facts)
    assert "killed by SIGKILL" in found.text
    assert "starts again in 4.0 s" in found.text
    assert found.next_step == "See logs/ledger.log."


@pytest.mark.parametrize(
    ("name", "part", "changes"),
    [
        ("valkey", "store", {"store": StoreFacts(answer=Answer.HANGING)}),
        ("postgres", "postgres", {"database": DatabaseFacts(answer=Answer.HANGING)}),
    ],
)
def test_a_server_held_by_a_signal_is_told_once_with_the_way_out(name, part, changes) -> None:
    facts = replace(with_process(name, is_stopped=True), **changes)
    found = [it for it in conditions_of(facts) if it.part != "gateways"]
    assert [it.part for it in found] == [part]
    assert found[0].next_step == "Continue it: `kill -CONT 7`."


def test_a_console_that_lacks_a_server_is_not_told_as_a_second_fault() -> None:
    facts = with_process("console", not_ready="/readyz answers 503")
    facts = replace(facts, database=DatabaseFacts(answer=Answer.UNREACHABLE))
    assert named(facts) == [("postgres", "away", BAD)]


def test_gateways_that_refuse_while_the_store_is_away_are_said_once() -> None:
    closed = [
        GatewayFacts(f"g{n}", store_mode="closed", snapshot_number=7, away_s=310, away_max_s=300)
        for n in range(3)
    ]
    facts = replace(with_store(answer=Answer.UNREACHABLE), gateways=tuple(closed))
    assert named(facts) == [("store", "away", BAD), ("gateways", "closed", BAD)]


def test_a_gateway_that_the_supervisor_starts_again_is_told_once() -> None:
    down = process(
        "gateway-g0", phase="backing off", pid=None, is_alive=None, expects_heartbeat=False
    )
    facts = with_process("collector", lag_s=60.0)  # it waits for the gateway's reports
    facts = replace(
        facts,
        processes=(*facts.processes, down),
        gateways=(GatewayFacts("g0", age_s=60.0),),
    )
    assert named(facts) == [("gateways", "none", BAD), ("gateway-g0", "down", BAD)]


def test_no_gateway_at_all_is_said_once() -> None:
    assert named(healthy(gateways=())) == [("gateways", "none", BAD)]


def test_worst_comes_first_and_the_list_is_bounded() -> None:
    facts = healthy(gateways=tuple(GatewayFacts(f"g{n}", age_s=60.0) for n in range(200)))
    facts = replace(facts, engines=(EngineFacts("p-0", is_alive=False),))
    found = conditions_of(facts)
    assert len(found) == MAX_SHOWN
    assert [it.tone for it in found] == sorted((it.tone for it in found), key=[BAD, WARN].index)


def test_each_condition_is_one_line_and_ends_as_a_sentence() -> None:
    facts = replace(
        with_store(answer=Answer.FULL),
        database=DatabaseFacts(answer=Answer.HANGING),
        processes=(process("worker", is_stopped=True), process("ledger", lag_s=900.0)),
        disks=(DiskFacts("state", "/s", 1, GIB),),
    )
    found = conditions_of(facts)
    assert len(found) >= 5
    for condition in found:
        assert "\n" not in condition.text
        assert condition.text.endswith(".")
        assert condition.bound or condition.next_step


def test_clock_that_was_set_is_told_for_a_while() -> None:
    def set_back(age_s: float) -> Facts:
        who = SupervisorFacts(True, True, clock_step_s=-3600.0, clock_step_age_s=age_s)
        return healthy(supervisor=who)

    assert named(set_back(30.0)) == [("clock", "set", WARN)]
    text = conditions_of(set_back(30.0))[0].text
    assert text.startswith("This machine's clock was set back by 60 min, 30 s ago.")
    assert named(set_back(601.0)) == []
