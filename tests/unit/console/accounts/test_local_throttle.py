"""Failed sign-ins stay bounded while the store is away."""

from django.test import override_settings

from console.accounts import throttle
from console.accounts.throttle import MAX_COUNTED, MAX_FAILURES, WINDOW_S, LocalCounts
from console.web.store import pooled_client


def test_attempts_over_the_bound_are_refused_until_their_window_ends() -> None:
    counts = LocalCounts()
    assert [counts.begin("ana", 0.0) for _ in range(MAX_FAILURES + 2)] == [
        *[True] * MAX_FAILURES,
        *[False] * 2,
    ]
    assert counts.begin("ola", 0.0)
    assert not counts.begin("ana", WINDOW_S - 1.0)
    assert counts.begin("ana", WINDOW_S)


def test_a_success_forgets_the_failures() -> None:
    counts = LocalCounts()
    for _ in range(MAX_FAILURES):
        counts.begin("ana", 0.0)
    counts.forget("ana")
    assert counts.begin("ana", 0.0)


def test_a_full_memory_refuses_new_names_and_keeps_the_known() -> None:
    counts = LocalCounts()
    for number in range(MAX_COUNTED):
        assert counts.begin(str(number), 0.0)
    assert not counts.begin("one more", 1.0)
    assert counts.begin("7", 1.0)
    assert counts.begin("one more", WINDOW_S + 1.0)


def test_without_the_store_the_process_counts_for_itself(monkeypatch) -> None:
    away = override_settings(REDIS_URL="redis://127.0.0.1:1/0")
    monkeypatch.setattr(throttle, "_local", LocalCounts())
    pooled_client.cache_clear()
    with away:
        answers = [throttle.begin_attempt("eve", "10.0.0.9") for _ in range(MAX_FAILURES + 1)]
    pooled_client.cache_clear()
    assert answers == [*[True] * MAX_FAILURES, False]
