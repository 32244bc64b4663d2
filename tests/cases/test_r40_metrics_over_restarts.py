"""R40: rates and averages stay right when a replica restarts."""

from contextlib import closing
from pathlib import Path

import redis

from routing.contracts.endpoint_state import EndpointState
from tests.collecting import endpoint, engines, start_collector
from tests.stack import make_snapshot, publish, store_server, wait_until


def page(tokens: int, total_s: float, count: int) -> dict[str, float]:
    return {
        "num_requests_running": 1,
        "generation_tokens_total": tokens,
        "time_to_first_token_seconds_sum": total_s,
        "time_to_first_token_seconds_count": count,
    }


def test_r40_rates_are_never_negative_and_means_are_of_their_period(tmp_path: Path) -> None:
    with (
        store_server(tmp_path / "store") as url,
        closing(redis.Redis.from_url(url)) as store,
        engines(1) as (u1,),
    ):
        u1.metrics(**page(99_950, 10, 5))
        publish(store, make_snapshot([("127.0.0.1", u1.port)]))
        seen: dict[int, EndpointState] = {}

        def scraped() -> int:
            """Note every published state; how many different scrapes there were."""
            state = endpoint(store, "p1")
            if state and state.at_ms:
                seen[state.at_ms] = state
            return len(seen)

        def next_scrape() -> EndpointState:
            before = scraped()
            wait_until(lambda: scraped() > before, 10, "a scrape")
            return seen[max(seen)]

        with start_collector(url, tmp_path):
            wait_until(lambda: scraped() >= 1, 10, "first scrape")
            first = seen[min(seen)]
            assert first.running == 1
            assert (first.generation_tokens_per_s, first.ttft_mean_s) == (None, None)
            for tokens, total_s, count, mean_s in ((100_000, 18, 9, 2.0), (500, 9, 2, 4.5)):
                u1.metrics(**page(tokens, total_s, count))
                wait_until(
                    lambda: (scraped() or True) and any(s.ttft_mean_s for s in seen.values()),
                    10,
                    "a mean",
                )
                means = [s.ttft_mean_s for s in seen.values() if s.ttft_mean_s is not None]
                assert means == [mean_s]
                next_scrape()
                rates = [s.generation_tokens_per_s for s in seen.values()]
                assert all(rate is None or 0 <= rate <= 100 for rate in rates), rates
                seen.clear()
        # The collector itself restarts: unknown, not 0, until it has seen two pages again.
        scraped()
        last = max(seen)
        with start_collector(url, tmp_path):
            wait_until(lambda: scraped() and max(seen) > last, 10, "scraped again")
            again = seen[min(at for at in seen if at > last)]
            assert again.running == 1
            assert (again.generation_tokens_per_s, again.ttft_mean_s) == (None, None)
