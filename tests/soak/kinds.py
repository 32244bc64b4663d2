"""What replicas do wrong in the gateway's soak, and the one outcome that each caller must see.

A caller asks for its own fault: the body's `user` is `<fault>-<number>`, which the gateway passes
on and the scripted replica (`tests/soak/replica.py`) acts upon.
"""

import re
from dataclasses import dataclass

OK = "ok"
LEFT = "left by the caller"
CUT_LOST = "error event: upstream_error"
CUT_SILENT = "error event: upstream_timeout"
FAILED = "502 upstream_error"
SILENT = "504 upstream_timeout"
FULL = "503 no_capacity"
LIMITED = "429 upstream_rate_limited"
# The machine kept the store from answering within the gateway's second: rare, and said in words.
AWAY = "503 store away"
AWAY_WORDS = "The shared limits "
AWAY_RATIO_MAX = 0.001

TAG = re.compile(rb'"user":"([a-z_]+)-(\d+)"')


@dataclass(frozen=True, slots=True)
class Kind:
    """One fault. `once`: only the first replica that is asked shows it, the next one serves.

    `streams`: only streamed calls (True), only whole ones (False), or both (None). `weight` is its
    share of the calls with a fault. `refused` is what its first replica does, as callers are told
    who are not tried elsewhere; empty where output had begun.
    """

    expected: str
    refused: str = ""
    once: bool = False
    streams: bool | None = None
    weight: int = 4


PLAIN = "plain"
LEAVES = "caller_leaves"
KILLS = "replica_killed"
KILLS_FIRST = "replica_killed_before_output"
KINDS: dict[str, Kind] = {
    PLAIN: Kind(OK, weight=0),
    "reset_once": Kind(OK, FAILED, once=True),
    "reset_always": Kind(FAILED, FAILED),
    "reset_in_stream": Kind(CUT_LOST, streams=True),
    "cut_body_once": Kind(OK, FAILED, once=True, streams=False),
    "closed_in_stream": Kind(CUT_LOST, streams=True),
    "stall_once": Kind(OK, SILENT, once=True, weight=2),
    "stall_always": Kind(SILENT, SILENT, weight=1),
    "stall_in_stream": Kind(CUT_SILENT, streams=True, weight=2),
    "busy_once": Kind(OK, FULL, once=True),
    "busy_always": Kind(FULL, FULL),
    "limited_once": Kind(OK, LIMITED, once=True),
    "limited_always": Kind(LIMITED, LIMITED),
    "error_first_once": Kind(OK, FAILED, once=True, streams=True),
    "error_in_stream": Kind(CUT_LOST, streams=True),
    LEAVES: Kind(LEFT, streams=True, weight=6),
    KILLS: Kind(CUT_LOST, streams=True, weight=0),  # drawn by the clock, not by chance
    KILLS_FIRST: Kind(OK, FAILED, once=True, weight=0),
}
BURSTS = ("busy_always", "limited_always")  # also sent many at once
# What no call asked for: at its last replica while it ran, by that replica's own record.
MET_KILL, MET_BUSY, MET_LIMITED = "met a killed replica", "met a busy one", "met a limited one"
# The retry budget of its tenant at that pool was spent: what it met is told as it is, and named so.
SPENT = " (retry_budget)"
_SHOWN_LAST = (FAILED, SILENT, FULL, LIMITED)  # of faults that every replica shows: the last counts


def spent(outcome: str) -> str:
    """The outcome of a call that was not tried elsewhere."""
    return outcome + SPENT


def may_end(fault: str, met: str, outcome: str) -> bool:
    """Whether a call with a fault of its own ends so where its last replica was in trouble too.

    A call that some replica would serve is sent on to it: only its output that was lost is seen.
    """
    expected = KINDS[fault].expected
    is_shown_last = expected in _SHOWN_LAST
    if met == MET_KILL:
        refused, seen = FAILED, FAILED if is_shown_last else CUT_LOST
    else:
        refused = FULL if met == MET_BUSY else LIMITED
        seen = refused if is_shown_last else expected
    return outcome in (seen, spent(refused))


def may_end_spent(fault: str, outcome: str) -> bool:
    """Whether it ends so because its own fault was not tried elsewhere."""
    refused = KINDS[fault].refused
    return bool(refused) and outcome == spent(refused)
