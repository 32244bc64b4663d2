from routing.decision.breaker import Breaker, Outcome, Phase


def failing(count: int, now_s: float = 0.0) -> Breaker:
    breaker = Breaker("u1")
    for _ in range(count):
        breaker.observe(Outcome.FAILURE, now_s)
    return breaker


def test_opens_at_the_fifth_failure_in_a_row() -> None:
    assert failing(4).allows()
    assert failing(5).phase is Phase.OPEN


def test_a_success_between_starts_the_count_again() -> None:
    breaker = failing(4)
    breaker.observe(Outcome.SUCCESS, 0)
    for _ in range(4):
        breaker.observe(Outcome.FAILURE, 0)
    assert breaker.allows()


def test_opens_when_half_of_twenty_in_the_window_fail() -> None:
    breaker = Breaker("u1")
    for turn in range(20):
        breaker.observe(Outcome.FAILURE if turn % 2 else Outcome.SUCCESS, 1.0)
    assert breaker.phase is Phase.OPEN


def test_failures_of_an_earlier_window_do_not_count() -> None:
    breaker = Breaker("u1")
    for turn in range(18):
        breaker.observe(Outcome.FAILURE if turn % 2 else Outcome.SUCCESS, 0.0)
    for turn in range(10):
        breaker.observe(Outcome.FAILURE if turn % 2 else Outcome.SUCCESS, 11.0)
    assert breaker.allows()


def test_two_hung_requests_open_it_and_say_so() -> None:
    breaker = Breaker("u1")
    breaker.observe(Outcome.HUNG, 0)
    assert breaker.allows()
    breaker.observe(Outcome.HUNG, 2)
    assert breaker.phase is Phase.OPEN
    assert breaker.reason == "hung"


def test_only_a_probe_half_opens_and_three_successes_close() -> None:
    breaker = failing(5)
    assert not breaker.wants_probe(7.9)
    assert breaker.wants_probe(12.1)
    assert not breaker.allows(), "time alone lets nobody through"
    breaker.probe_started()
    assert not breaker.wants_probe(12.1), "one probe at a time"
    breaker.probe_ended(13, succeeded=True)
    assert breaker.phase is Phase.HALF_OPEN
    for _ in range(3):
        breaker.observe(Outcome.SUCCESS, 14)
    assert breaker.phase is Phase.CLOSED
    assert breaker.reason == ""


def test_failure_when_half_open_opens_again_for_longer() -> None:
    breaker = failing(5)
    first_s = breaker.open_until_s
    breaker.probe_started()
    breaker.probe_ended(first_s, succeeded=True)
    breaker.observe(Outcome.FAILURE, 20)
    assert breaker.phase is Phase.OPEN
    assert breaker.open_until_s - 20 > first_s * 1.3


def test_time_open_doubles_to_its_bound_with_jitter_within_a_fifth() -> None:
    breaker = failing(5)
    now_s, spans = 0.0, []
    for _ in range(5):
        spans.append(breaker.open_until_s - now_s)
        now_s = breaker.open_until_s
        breaker.probe_started()
        breaker.probe_ended(now_s, succeeded=False)
    for span, base in zip(spans, (10, 20, 40, 40, 40), strict=True):
        assert 0.8 * base <= span <= 1.2 * base
