"""Burn, fairness and carbon against the figures of the decision core and the SRE workbook."""

import pytest

from telemetry.stats.burn import BUDGET_MIN, Judged, alarm, budget_left, burn, lasts_min
from telemetry.stats.carbon import Inputs, footprint, share_of
from telemetry.stats.fairness import jain_index


def windows(**bad: int) -> dict[int, Judged]:
    return {
        minutes: Judged(10_000, 10_000 - bad.get(f"m{minutes}", 0))
        for minutes in (5, 30, 60, 360, 4_320)
    }


def test_burn_is_bad_share_over_budget() -> None:
    assert burn(Judged(1_000, 990), 0.99) == pytest.approx(1.0)
    assert burn(Judged(1_000, 856), 0.99) == pytest.approx(14.4)
    assert burn(Judged(), 0.99) is None


def test_an_hour_at_14_4_spends_two_per_cent_of_thirty_days() -> None:
    assert pytest.approx(0.02) == 14.4 / (30 * 24)


def test_both_windows_must_burn() -> None:
    assert alarm(windows(m60=2_000, m5=2_000), 0.99).rule.severity == "page"  # type: ignore[union-attr]
    assert alarm(windows(m60=2_000, m5=10), 0.99) is None  # over: nothing to wake for
    assert alarm(windows(m60=10, m5=2_000), 0.99) is None  # too short to matter
    slow = alarm(windows(m360=700, m30=700), 0.99)
    assert slow is not None
    assert (slow.rule.burn, slow.rule.severity) == (6.0, "page")
    ticket = alarm(windows(m4320=150, m360=150), 0.99)
    assert ticket is not None
    assert ticket.rule.severity == "ticket"


def test_few_bad_requests_never_page() -> None:
    few = {minutes: Judged(49, 0) for minutes in (5, 30, 60, 360, 4_320)}
    assert alarm(few, 0.99) is None
    enough = {minutes: Judged(50, 0) for minutes in (5, 30, 60, 360, 4_320)}
    assert alarm(enough, 0.99) is not None


def test_carbon_of_one_hour_is_the_worked_example() -> None:
    """0.7 kW x 1 h x 1.2 x 400 g + 150 kg / 4 y = 336 + 4.3 g; 5.67 mg of 60,000 requests."""
    found = footprint(3_600, Inputs(power_w=700, grid_g_per_kwh=400, pue=1.2))
    assert found.energy_kwh == pytest.approx(0.84)
    assert found.operational_g == pytest.approx(336)
    assert found.embodied_g == pytest.approx(4.28, abs=0.01)
    assert found.total_g / 60_000 * 1_000 == pytest.approx(5.67, abs=0.01)


def test_a_share_of_gpu_time_follows_work_and_never_exceeds_the_pool() -> None:
    assert share_of(1_000, 25, 100) == 250
    assert share_of(1_000, 200, 100) == 1_000
    assert share_of(1_000, 5, 0) == 0


def test_jain_index_of_even_and_uneven_shares() -> None:
    assert jain_index([5, 5, 5, 5]) == pytest.approx(1)
    assert jain_index([1, 0, 0]) == 1  # who has nothing takes no part
    assert jain_index([3, 1]) == pytest.approx(16 / (2 * 10))
    assert jain_index([]) is None


def test_what_is_left_of_a_budget_lasts_as_long_as_the_burn_says() -> None:
    assert budget_left(Judged(), 0.95) is None
    assert budget_left(Judged(1_000, 1_000), 0.95) == 1
    left = budget_left(Judged(1_000, 980), 0.95)  # 50 bad ones were allowed, 20 came
    assert left == pytest.approx(0.6)
    assert budget_left(Judged(1_000, 900), 0.95) == pytest.approx(-1)
    assert lasts_min(left, 1.0) == pytest.approx(0.6 * BUDGET_MIN)
    assert lasts_min(left, 14.4) == pytest.approx(0.6 * BUDGET_MIN / 14.4)
    assert lasts_min(left, 0.0) is None
    assert lasts_min(left, None) is lasts_min(None, 1.0) is None
    assert lasts_min(-1.0, 1.0) == 0
