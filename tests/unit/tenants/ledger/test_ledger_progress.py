from tenants.ledger.writer.heartbeat import Progress


def test_writer_that_read_everything_has_no_lag() -> None:
    assert Progress(round_at_ms=10_000).lag_s(10_500) == 0


def test_lag_is_the_age_of_the_oldest_unread_entry() -> None:
    assert Progress(oldest_unread_ms=9_000, round_at_ms=10_000).lag_s(10_500) == 1.5


def test_round_that_does_not_end_counts_as_lag() -> None:
    """PostgreSQL hangs before anybody could look into the streams."""
    assert Progress(round_at_ms=10_000).lag_s(17_000) == 7


def test_clock_of_the_store_that_is_ahead_gives_no_negative_lag() -> None:
    assert Progress(oldest_unread_ms=12_000).lag_s(10_000) == 0


def test_note_names_trouble_and_parked_entries() -> None:
    note = Progress(rows=3, parked=2, trouble="waiting for PostgreSQL").note()
    assert note == "3 rows, 0 shapes written; 2 damaged entries parked; waiting for PostgreSQL"
