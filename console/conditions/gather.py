"""Everything that conditions are judged by, asked side by side in about a second.

`status`, the pages, REST and the metrics all read `Report`s made here, so that they agree.
"""

import http.client
import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from console.conditions.board import Board, BoardRow, local_engines, read_board
from console.conditions.database_probe import ask_database, silent_database
from console.conditions.flights import DEADLINE_S, Flights
from console.conditions.rules import conditions_of
from console.conditions.rules.condition import Condition
from console.conditions.rules.facts import (
    Answer,
    DiskFacts,
    EngineFacts,
    Facts,
    GatewayFacts,
    ProcessFacts,
)
from console.conditions.store_probe import StoreAnswer, ask_store, silent_store
from routing.contracts.process import GatewayStatus, ProcessStatus
from routing.contracts.version import VERSION

LOOPBACK = "127.0.0.1"
HTTP_TIMEOUT_S = 0.9
MAX_ASKED = 64  # processes of this machine that are asked for their readiness
MAX_BODY_BYTES = 64 * 1024
REASON_BYTES = 160  # a reason, not a page

_flights = Flights()
_decode_gateway = msgspec.json.Decoder(GatewayStatus).decode


@dataclass(frozen=True, slots=True)
class Sources:
    """Where to ask. An empty address is not asked: nothing is known to run there."""

    state: Path
    redis_url: str = ""
    database_url: str = ""


@dataclass(frozen=True, slots=True)
class Report:
    """What was seen at `at` (Unix seconds) and what follows from it."""

    at: float
    facts: Facts
    conditions: tuple[Condition, ...]


def gather(sources: Sources, deadline_s: float = DEADLINE_S) -> Report:
    """Ask all parts at once; what does not answer in `deadline_s` is a fact of its own."""
    board = read_board(sources.state, time.time())
    answers = _flights.ask(_jobs(sources, board), deadline_s)
    now = time.time()
    store = answers.get("store", silent_store()) if sources.redis_url else StoreAnswer.unasked()
    database = None
    if sources.database_url:
        database = answers.get("database", silent_database())
    facts = Facts(
        supervisor=board.supervisor,
        processes=_processes(board, store, answers, now),
        gateways=_gateways(board, store, answers, now),
        store=store.facts,
        database=database,
        disks=answers.get("disks", ()),
        engines=_engines(local_engines(sources.state), store),
        code_version=VERSION,
    )
    return Report(now, facts, conditions_of(facts))


def _jobs(sources: Sources, board: Board) -> dict[str, Callable[[], Any]]:
    jobs: dict[str, Callable[[], Any]] = {"disks": partial(disks, sources.state)}
    if sources.redis_url:
        jobs["store"] = partial(ask_store, sources.redis_url)
    if sources.database_url:
        jobs["database"] = partial(ask_database, sources.database_url)
    asked = [row for row in board.rows if row.ready_port and row.facts.is_alive][:MAX_ASKED]
    for row in asked:
        if row.facts.pid == os.getpid():
            continue  # whoever reads this has just been answered by it
        port = row.ready_port or 0
        jobs[f"ready {port}"] = partial(ask_ready, port)
        if row.is_gateway:
            jobs[f"status {port}"] = partial(ask_gateway, port)
    return jobs


def ask_ready(port: int) -> str:
    """Why the process on a port of this machine is not ready; empty when it is."""
    try:
        status, body = _get(port, "/readyz", REASON_BYTES)
    except (OSError, http.client.HTTPException) as error:
        return f"no answer from /readyz ({error})"
    if status == 200:
        return ""
    said = " ".join(body.decode(errors="replace").split())
    return f"/readyz answers {status} {said}".strip()


def ask_gateway(port: int) -> GatewayStatus | None:
    """A gateway's own status by its admin port; None if it gives none (an older version)."""
    try:
        status, body = _get(port, "/status", MAX_BODY_BYTES)
        return _decode_gateway(body) if status == 200 else None
    except (OSError, http.client.HTTPException, msgspec.MsgspecError):
        return None


def _get(port: int, path: str, most_bytes: int) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(LOOPBACK, port, timeout=HTTP_TIMEOUT_S)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read(most_bytes)
    finally:
        connection.close()


def disks(state: Path) -> tuple[DiskFacts, ...]:
    """The state directory, and the journals' if it lies on another file system."""
    found = [_disk("state", state)]
    journal = state / "journal"
    try:
        is_apart = journal.stat().st_dev != state.stat().st_dev
    except OSError:
        is_apart = False
    if is_apart:
        found.append(_disk("journal", journal))
    return tuple(found)


def _disk(name: str, path: Path) -> DiskFacts:
    try:
        room = os.statvfs(path)
    except OSError as error:
        return DiskFacts(name, str(path), error=error.strerror or str(error))
    fault = ""
    if room.f_flag & os.ST_RDONLY:
        fault = "its file system is read-only"
    elif not os.access(path, os.W_OK | os.X_OK):
        fault = "permission denied"
    free_bytes, size_bytes = room.f_bavail * room.f_frsize, room.f_blocks * room.f_frsize
    return DiskFacts(name, str(path), free_bytes, size_bytes, fault)


def _processes(
    board: Board, store: StoreAnswer, answers: dict[str, Any], now: float
) -> tuple[ProcessFacts, ...]:
    """Supervised ones with their own last word, then those that report from elsewhere."""
    words = {(status.name, status.pid): status for status in store.processes}
    versions = _server_versions(store, answers)
    found = []
    for row in board.rows:
        is_empty = store.facts.answer is Answer.OK and store.facts.snapshot_number is None
        why = row.facts.not_ready or _not_ready(row, answers, is_empty=is_empty)
        facts = replace(row.facts, not_ready=why)
        if facts.name in versions:
            facts = replace(facts, version=versions[facts.name])
        elif facts.pid is not None and (facts.name, facts.pid) in words:
            facts = _with_word(facts, words.pop((facts.name, facts.pid)), now)
        found.append(facts)
    ours = {facts.name for facts in found}
    for status in words.values():
        age_s = now - status.at_ms / 1000
        is_former = status.name in ours and age_s > 2  # the entry that a killed process left
        if not is_former:
            found.append(_with_word(ProcessFacts(status.name, pid=status.pid), status, now))
    return tuple(found)


def _not_ready(row: BoardRow, answers: dict[str, Any], *, is_empty: bool) -> str:
    """Before the first policy a gateway that answers is as ready as it can be."""
    asks = row.ready_port is not None and row.facts.is_alive and row.facts.pid != os.getpid()
    if not asks or row.facts.phase != "ready":
        return ""
    reason = str(answers.get(f"ready {row.ready_port}", "no answer from /readyz within 1 s"))
    return "" if is_empty and row.is_gateway and reason.startswith("/readyz answers") else reason


def _with_word(facts: ProcessFacts, status: ProcessStatus, now: float) -> ProcessFacts:
    return replace(
        facts,
        up_s=max(0.0, now - status.started_at_ms / 1000) if facts.up_s is None else facts.up_s,
        heartbeat_age_s=max(0.0, now - status.at_ms / 1000),
        lag_s=status.lag_s,
        note=status.note,
        trouble=status.trouble,
        version=status.version,
        counts=status.counts,
    )


def _server_versions(store: StoreAnswer, answers: dict[str, Any]) -> dict[str, str]:
    database = answers.get("database")
    return {
        "valkey": store.facts.version,
        "postgres": database.version.partition(" ")[0] if database else "",
    }


def _gateways(
    board: Board, store: StoreAnswer, answers: dict[str, Any], now: float
) -> tuple[GatewayFacts, ...]:
    """By the store; while it is silent, by the admin ports of this machine."""
    restarts = {row.facts.pid: row.facts.restarts for row in board.rows if row.facts.pid}
    said = {status.gateway_id: status for status in store.gateways}
    direct: set[str] = set()
    for row in board.rows:
        status = answers.get(f"status {row.ready_port}")
        if isinstance(status, GatewayStatus):
            said[status.gateway_id] = status  # newer than what lies in the store
            direct.add(status.gateway_id)
    now += store.facts.clock_offset_s or 0.0  # they stamp by the store's clock
    return tuple(
        _gateway(status, now, restarts.get(status.pid), is_direct=status.gateway_id in direct)
        for _, status in sorted(said.items())
    )


def _gateway(
    status: GatewayStatus, now: float, restarts: int | None, *, is_direct: bool
) -> GatewayFacts:
    return GatewayFacts(
        gateway_id=status.gateway_id,
        pid=status.pid,
        address=f"{status.host}:{status.port}",
        age_s=max(0.0, now - status.at_ms / 1000),
        up_s=max(0.0, now - status.started_at_ms / 1000),
        restarts=restarts,
        state=status.state,
        store_mode=status.store_mode.value,
        away_s=status.store_away_s,
        away_max_s=status.store_away_max_s,
        snapshot_number=status.snapshot_number,
        policy=status.policy,
        in_flight=status.in_flight,
        journal_pending=status.journal_pending,
        is_journal_behind=status.is_journal_behind,
        trouble=status.trouble,
        version=status.version,
        is_direct=is_direct,
    )


def _engines(local: Iterable[EngineFacts], store: StoreAnswer) -> tuple[EngineFacts, ...]:
    """Processes of this machine with what is reported of them, then replicas elsewhere."""
    states = {state.replica_id: state for state in store.endpoints}
    found = {engine.name: engine for engine in local}
    for name, state in states.items():
        engine = found.get(name, EngineFacts(name))
        found[name] = replace(
            engine,
            pool=state.pool,
            model=store.model_of_pool.get(state.pool, ""),
            version=state.engine_version,
            health=state.health.value,
            cause=state.reason,
        )
    return tuple(engine for _, engine in sorted(found.items()))
