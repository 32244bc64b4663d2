from collections import Counter
from typing import Any

from routing.contracts.enums import Dimension, LimitScope, WindowKind
from routing.decision.admit import Denial
from routing.decision.limits import Group
from routing.decision.types import Amounts
from routing.gateway import returns as module
from routing.gateway.returns import Caller, Returns
from routing.store import keys

NOW_MS = 1_800_000_010_000
WAIT_MS = 50_000
PER_MINUTE = Group(LimitScope.TENANT, WindowKind.MINUTE, "", ((Dimension.REQUESTS, 2),))
DENIAL = Denial(0, Dimension.REQUESTS, 2, 0, WAIT_MS)
NEED = Amounts(1, 1, 1, 1)


def caller(body: bytes, key: str = "k") -> Caller:
    return Caller("acme", "UTC", key, body)


def refuse(returns: Returns, who: Caller, now_ms: int = NOW_MS) -> float | None:
    wait_ms = NOW_MS + WAIT_MS - now_ms
    denial = Denial(0, Dimension.REQUESTS, 2, 0, wait_ms % 60_000)
    return returns.refused(who, PER_MINUTE, denial, NEED, now_ms)


def test_a_return_counts_once_and_only_from_the_told_time_on() -> None:
    returns = Returns()
    assert returns.is_idle
    for body in (b"kept", b"early"):
        assert refuse(returns, caller(body)) == WAIT_MS / 1000
    returns.admitted(caller(b"early"), NOW_MS + WAIT_MS - 1)
    returns.admitted(caller(b"kept"), NOW_MS + WAIT_MS)
    returns.admitted(caller(b"kept"), NOW_MS + WAIT_MS + 1)
    returns.admitted(caller(b"stranger"), NOW_MS + WAIT_MS)
    assert returns.totals == {("requests_per_minute", "admitted"): 1}
    assert returns.is_idle


def test_the_same_body_under_another_key_is_another_caller() -> None:
    returns = Returns()
    refuse(returns, caller(b"x"))
    returns.admitted(caller(b"x", "other"), NOW_MS + WAIT_MS)
    assert returns.totals == Counter()


def test_who_comes_early_keeps_its_place_and_takes_no_other() -> None:
    returns = Returns()
    refuse(returns, caller(b"one"))
    for early_ms in (1_000, 2_000):
        told_s = refuse(returns, caller(b"one"), NOW_MS + early_ms)
        assert told_s == (WAIT_MS - early_ms) / 1000
    assert refuse(returns, caller(b"two")) == WAIT_MS / 1000
    assert refuse(returns, caller(b"three")) == WAIT_MS / 1000 + 60


def test_a_return_in_vain_is_counted_and_told_anew() -> None:
    returns = Returns()
    refuse(returns, caller(b"one"))
    back_ms = NOW_MS + WAIT_MS + 10
    told_s = refuse(returns, caller(b"one"), back_ms)
    assert told_s is not None and told_s > 0
    assert returns.totals == {("requests_per_minute", "refused"): 1}


def test_one_that_can_never_enter_is_told_nothing() -> None:
    group = Group(LimitScope.TENANT, WindowKind.MINUTE, "", ((Dimension.REQUESTS, 0),))
    returns = Returns()
    assert returns.refused(caller(b"x"), group, DENIAL, NEED, NOW_MS) is None
    assert returns.is_idle


def test_memory_is_bounded_the_longest_told_go_first(monkeypatch: Any) -> None:
    monkeypatch.setattr(module, "WAITING_MAX", 3)
    returns = Returns()
    for number in range(5):
        refuse(returns, caller(bytes([number])))
    assert len(returns._waiting) == 3
    returns.admitted(caller(b"\x00"), NOW_MS + 600_000)
    assert returns.totals == Counter()


def test_counts_are_sent_once_under_the_tenant_and_day() -> None:
    returns = Returns()
    refuse(returns, caller(b"one"))
    returns.admitted(caller(b"one"), NOW_MS + WAIT_MS)
    sent: list[tuple[Any, ...]] = []
    for _ in range(2):
        returns.flush(lambda *command: sent.append(command), NOW_MS)
    key = keys.returns_day("acme", NOW_MS // 86_400_000)
    assert sent == [
        ("HINCRBY", key, "requests_per_minute|admitted", 1),
        ("EXPIRE", key, module.KEPT_S),
    ]
