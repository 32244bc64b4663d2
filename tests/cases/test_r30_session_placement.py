"""R30: adding or removing a replica moves few sessions, and shares are even."""

import contextlib
from collections import Counter
from pathlib import Path

import httpx
import redis

from routing.decision.affinity import Affinity, place_of
from routing.decision.breaker import Breaker
from routing.decision.filters import Candidate, Need
from routing.decision.select import Group, select
from tests.gatewaying import serving
from tests.stack import ACME_KEY, GatewayProcess
from tests.upstream import UpstreamThread, answer, json_script

SESSIONS = [f"session-{number}" for number in range(1000)]
FEW = SESSIONS[:60]  # in real processes: each costs three requests


def placed(names: list[str]) -> dict[str, str]:
    """Where the router puts each session when nothing runs."""
    group = Group(1, 1.0, [Candidate(name, "p1", Breaker(name), 400_000) for name in names])
    found = {}
    for session in SESSIONS:
        affinity = Affinity(place_of("salt-acme", session), {})
        choice = select([group], Need(session, 10, 100, affinity=affinity), 100.0)
        assert choice is not None
        found[session] = choice.candidate.id
    return found


def test_a_new_replica_takes_its_share_and_moves_nobody_else() -> None:
    four = placed(["u1", "u2", "u3", "u4"])
    five = placed(["u1", "u2", "u3", "u4", "u5"])
    moved = {session for session in SESSIONS if four[session] != five[session]}
    assert 0 < len(moved) <= 300
    assert {five[session] for session in moved} == {"u5"}
    for placement, count in ((four, 4), (five, 5)):
        shares = Counter(placement.values())
        assert len(shares) == count
        mean = 1000 / count
        assert all(0.75 * mean <= share <= 1.25 * mean for share in shares.values()), shares


def test_a_removed_replica_moves_its_own_sessions_alone() -> None:
    five = placed(["u1", "u2", "u3", "u4", "u5"])
    left = placed(["u5", "u4", "u3", "u1"])
    moved = {session for session in SESSIONS if five[session] != left[session]}
    assert moved == {session for session in SESSIONS if five[session] == "u2"}


def asked(gateway: GatewayProcess) -> list[str]:
    """Which replica answered each of the few sessions, one after another."""
    found = []
    with httpx.Client(trust_env=False, timeout=30) as client:
        for session in FEW:
            response = client.post(
                f"{gateway.url}/v1/chat/completions",
                json={"model": "alpha-8b", "messages": [{"role": "user", "content": "hi"}]},
                headers={"authorization": f"Bearer {ACME_KEY}", "x-session-id": session},
            )
            found.append(response.json()["choices"][0]["message"]["content"])
    return found


def test_two_gateways_and_a_restarted_one_agree(
    tmp_path: Path, store: "redis.Redis[bytes]"
) -> None:
    with contextlib.ExitStack() as stack:
        names = [f"p1-u{number}" for number in range(1, 5)]
        replicas = [stack.enter_context(UpstreamThread(json_script(answer(n)))) for n in names]
        expected = placed(names)
        with serving(tmp_path / "a", *replicas) as gateway:
            first = asked(gateway)
            other = {"HEADRACE_GATEWAY_ID": "g1"}
            with serving(tmp_path / "b", *replicas, env=other) as second:
                assert asked(second) == first
        with serving(tmp_path / "a", *replicas) as restarted:
            assert asked(restarted) == first
        assert first == [expected[session] for session in FEW]
        assert len(set(first)) == 4
