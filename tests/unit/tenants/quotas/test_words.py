"""Limits in words: what stops first and when, and why a call was refused."""

from datetime import UTC, datetime, timedelta

import pytest

from routing.contracts.enums import Dimension, LimitScope, WindowKind
from routing.decision.types import Reason
from tenants.portal.rules import explain
from tenants.quotas.selectors import LimitPosition, LimitView
from tenants.quotas.words import first_to_stop, rows_of

NOON = datetime(2025, 11, 29, 12, tzinfo=UTC)
MIDNIGHT = NOON.replace(hour=0)
USD = 10**9


def position(
    dimension: Dimension = Dimension.SPEND_NANOUSD,
    window: WindowKind = WindowKind.DAY,
    *,
    amount: int = 100 * USD,
    used: int | None = 0,
    held: int | None = 0,
    scope: LimitScope = LimitScope.TENANT,
    anchor_min: int = 0,
) -> LimitPosition:
    is_gauge = window is WindowKind.NOW
    return LimitPosition(
        limit=LimitView(
            id=1,
            name="x",
            scope=scope,
            dimension=dimension,
            window=window,
            amount=amount,
            key_id=7 if scope is LimitScope.KEY else None,
            model=None,
            work_class="",
            anchor_min=anchor_min,
        ),
        used=used,
        held=held,
        remaining=None if used is None else max(amount - used - (held or 0), 0),
        window_start=None if is_gauge else MIDNIGHT,
        window_end=None if is_gauge else MIDNIGHT + timedelta(days=1),
    )


def words(*positions: LimitPosition) -> str:
    return first_to_stop(rows_of(positions, {7: "abc…"}, NOON), NOON)


def test_the_rate_of_the_window_so_far_tells_when_it_ends():
    # 60 in twelve hours leaves 40: eight more hours
    assert words(position(used=60 * USD)) == (
        "First to stop: daily spend, in about 8 h at this window's rate."
    )


def test_what_lasts_until_the_window_ends_does_not_stop():
    assert words(position(used=40 * USD, held=USD)) == (
        "Nothing stops at this rate. Fullest: daily spend, 41 %."
    )


def test_nothing_left_is_said_as_now():
    text = words(position(), position(Dimension.CONCURRENCY, WindowKind.NOW, amount=4, used=4))
    assert text == "Stopped now: concurrency has nothing left."


def test_a_limit_of_zero_is_full_not_empty():
    [row] = rows_of([position(amount=0)], {}, NOON)
    assert row.used_ratio == 1.0


def test_unknown_positions_are_unknown():
    unknown = position(used=None, held=None)
    [row] = rows_of([unknown], {}, NOON)
    assert (row.used, row.used_ratio, row.remaining) == ("—", None, "—")
    assert "unknown" in row.label
    assert words(unknown) == "The position of no limit is known now."


def test_own_limits_come_before_keys_and_long_windows_before_short():
    rows = rows_of(
        [
            position(Dimension.REQUESTS, WindowKind.MINUTE, scope=LimitScope.KEY),
            position(Dimension.CONCURRENCY, WindowKind.NOW),
            position(Dimension.REQUESTS, WindowKind.MINUTE),
            position(),
        ],
        {7: "abc…"},
        NOON,
    )
    assert [(row.title, row.subject) for row in rows] == [
        ("Daily spend", "tenant"),
        ("Requests/min", "tenant"),
        ("Concurrency", "tenant"),
        ("Requests/min", "key abc…"),
    ]


def test_the_label_says_what_the_bar_shows():
    [row] = rows_of([position(used=62_100_000_000, held=8_400_000_000)], {}, NOON)
    assert row.label == "Daily spend: 62.10 used and 8.40 held of 100.00 USD, 29.50 remaining"


def test_an_anchored_limit_says_where_its_window_begins():
    at = 10 * 60

    def title(window: WindowKind, anchor_min: int) -> str:
        (row,) = rows_of([position(window=window, anchor_min=anchor_min)], {}, NOON)
        return row.title

    assert title(WindowKind.MONTH, 0) == "Monthly spend"
    assert title(WindowKind.MONTH, 14 * 1440 + at) == "Monthly spend from day 15, 10:00"
    assert title(WindowKind.WEEK, 2 * 1440) == "Weekly spend from Wednesday"
    assert title(WindowKind.DAY, at) == "Daily spend from 10:00"


def said_of(reason: str, limit: str = "", scope: str = "", wait_ms: int | None = None) -> str:
    said = explain(code=reason, limit=limit, scope=scope, retry_after_ms=wait_ms)
    return f"{said.what} {said.next_step}"


def test_every_reason_has_words_of_its_own() -> None:
    words = {said_of(reason.value) for reason in Reason}
    assert len(words) == len(Reason)
    assert said_of("a code of tomorrow") not in words


@pytest.mark.parametrize(
    ("reason", "limit"),
    [
        (Reason.DEADLINE_EXCEEDED, "total_s"),
        (Reason.UPSTREAM_TIMEOUT, "first_token_s"),
        (Reason.UPSTREAM_TIMEOUT, "between_tokens_s"),
    ],
)
def test_a_time_that_passed_is_no_limit_without_room(reason: Reason, limit: str) -> None:
    assert said_of(reason.value, limit) == said_of(reason.value)
    assert "Send it again" in said_of(reason.value, limit)


@pytest.mark.parametrize(
    ("reason", "limit", "scope"),
    [
        (Reason.CLASS_PAUSED, "class_batch", "fleet"),
        (Reason.SHED, "class", "fleet"),
        (Reason.CONTEXT_CAPPED, "input_tokens_per_request", "tenant"),
    ],
)
def test_an_override_is_an_operators_doing_and_ends(reason: Reason, limit: str, scope: str) -> None:
    said = said_of(reason.value, limit, scope, 30_000)
    assert "An operator" in said
    assert "come back after 30 s" in said
    assert "had no room" not in said


def test_a_limit_names_whose_it_is() -> None:
    for scope, whose in [("tenant", "the tenant"), ("pool_class", "the pool for this class")]:
        said = said_of(Reason.NO_CAPACITY.value, "concurrency", scope)
        assert f"The limit concurrency of {whose} had no room" in said
