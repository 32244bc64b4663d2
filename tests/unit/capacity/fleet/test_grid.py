"""The KV grid: unknown is not empty, stale is out of every sum."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from capacity.fleet.grid import KV_FULL_PERCENT, KV_WARN_PERCENT, kv_tone, sums_of
from capacity.fleet.selectors import PoolRow, ReplicaRow
from console.pages.attention import of_pool
from console.web.live_state import SeenPool
from routing.contracts.endpoint_state import EndpointState, PoolState
from routing.contracts.enums import ReplicaHealth

ROOT = Path(__file__).resolve().parents[4]
NOW = datetime(2025, 11, 29, tzinfo=UTC)


def replica(ordinal: int, **fields: Any) -> ReplicaRow:
    base = {"health": ReplicaHealth.OK, "scrape_age_s": 0.5, "running": 2, "waiting": 1}
    return ReplicaRow(
        name=f"p-{ordinal}",
        ordinal=ordinal,
        address="h:1",
        lifecycle="ready",
        since=NOW,
        cause="",
        state="ready",
        **{**base, **fields},
    )


def pool(*replicas: ReplicaRow) -> PoolRow:
    return PoolRow("p", "m", "simulated", "eu", "eu-a", "h", 3, 3, 0, replicas, 0.5)


def test_stale_and_unseen_replicas_are_out_of_the_sums():
    sums = sums_of(
        pool(
            replica(0, kv_usage_ratio=0.4),
            replica(1, kv_usage_ratio=0.9, scrape_age_s=42),
            replica(2, health=None, scrape_age_s=None, running=None),
        )
    )
    assert (sums.fresh, sums.mean_kv_ratio, sums.running) == (1, 0.4, 2)
    assert [cell.text for cell in sums.cells] == ["40", "◌", "◌"]
    assert [cell.tone for cell in sums.cells] == ["h1", "unknown", "unknown"]


def test_nothing_fresh_is_unknown_never_zero():
    sums = sums_of(pool(replica(0, kv_usage_ratio=0.4, scrape_age_s=60)))
    assert (sums.mean_kv_ratio, sums.running, sums.output_per_s) == (None, None, None)


def test_colours_warn_from_ninety_and_alarm_from_ninety_seven_per_cent():
    sums = sums_of(pool(*(replica(n, kv_usage_ratio=r) for n, r in enumerate((0.1, 0.9, 0.97)))))
    assert [cell.tone for cell in sums.cells] == ["h0", "h4", "h5"]
    assert [cell.text for cell in sums.cells] == ["10", "▲90", "■97"]


def test_a_hung_replica_alarms_at_any_occupancy():
    [cell] = sums_of(pool(replica(0, health=ReplicaHealth.HUNG, kv_usage_ratio=0.1))).cells
    assert (cell.tone, cell.text) == ("h5", "■10")


@pytest.mark.parametrize(
    ("ratio", "tone", "glyph"),
    [
        (0.89, "", ""),
        (0.8951, "warn", "▲"),
        (0.9, "warn", "▲"),
        (0.9651, "bad", "■"),
        (1, "bad", "■"),
    ],
)
def test_a_cell_and_attention_follow_one_rule_on_the_shown_figure(ratio, tone, glyph):
    [cell] = sums_of(pool(replica(0, kv_usage_ratio=ratio))).cells
    assert cell.text == f"{glyph}{round(ratio * 100)}"
    assert kv_tone(ratio) == tone
    seen = SeenPool(
        PoolState("p", 0, [EndpointState("p-0", "p", 0, ReplicaHealth.OK, kv_usage_ratio=ratio)]),
        0.1,
    )
    assert [strip.tone for strip in of_pool("p", seen, 1)] == ([tone] if tone else [])


def test_the_legend_says_the_bounds_of_the_rule():
    legend = (ROOT / "templates/capacity/kv_legend.html").read_text()
    assert f"▲ from {KV_WARN_PERCENT} %" in legend
    assert f"■ from {KV_FULL_PERCENT} %" in legend
