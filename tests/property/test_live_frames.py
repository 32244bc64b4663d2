"""A viewer that applies every frame holds what the server shows."""

from hypothesis import given
from hypothesis import strategies as st

from telemetry.live.rules import RESNAP_S, Held, View, advance

ids = st.lists(st.sampled_from("abcdef"), unique=True, max_size=6)
steps = st.lists(st.tuples(ids, st.integers(0, 3), st.floats(0.5, 8)), min_size=1, max_size=20)


def view(seq: int, members: list[str], salt: int) -> View:
    rows = [[name, (ord(name) * 7 + salt) % 5] for name in members]
    return View(epoch="e", seq=seq, at_ms=seq * 1000, fields=("id", "value"), rows=rows)


@given(steps=steps)
def test_applied_frames_give_the_view_and_members_wait_for_the_next_snap(steps) -> None:
    held: Held | None = None
    copy: list[list] = []
    now_s = snapped_at_s = 0.0
    for seq, (members, salt, wait_s) in enumerate(steps):
        now_s += wait_s
        shown = view(seq, members, salt)
        frame, held = advance(1, held, shown, now_s)
        assert frame is not None
        assert frame["seq"] == seq
        if frame["t"] == "snap":
            assert seq == 0 or now_s - snapped_at_s >= RESNAP_S
            snapped_at_s = now_s
            copy = [list(row) for row in frame["rows"]]
        else:
            for position, *values in frame["d"]:
                copy[position] = [copy[position][0], *values]
        assert copy == held.rows
        current = dict(shown.rows)
        assert all(current.get(name, value) == value for name, value in copy)
        if now_s - snapped_at_s >= RESNAP_S or frame["t"] == "snap":
            assert copy == shown.rows
        assert advance(1, held, shown, now_s) == (None, held)
