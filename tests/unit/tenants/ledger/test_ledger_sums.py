"""Totals of a page from the rows that it shows."""

from tenants.ledger.selectors import MAX_GROUPS, Spend, Totals, added


def test_a_total_is_the_sum_of_its_rows() -> None:
    rows = (
        Spend("1", "acme", Totals(2, 1, 0, 30, 10, 5, 700)),
        Spend("2", "globex", Totals(3, 0, 1, 4, 0, 6, -100)),
    )
    assert added(rows) == Totals(5, 1, 1, 34, 10, 11, 600)
    assert added(()) == Totals()


def test_rows_that_were_cut_have_no_total_of_their_own() -> None:
    row = Spend("1", "acme", Totals(1))
    assert added((row,) * (MAX_GROUPS - 1)) == Totals(MAX_GROUPS - 1)
    assert added((row,) * MAX_GROUPS) is None
