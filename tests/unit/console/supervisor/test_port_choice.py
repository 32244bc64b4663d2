"""Which port a server is given when nobody asks for one."""

import socket
from pathlib import Path

import pytest

from console.supervisor import ports


def test_it_is_none_that_the_system_gives_to_outgoing_connections(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = tmp_path / "range"
    told.write_text("21000\t65535\n")
    monkeypatch.setattr(ports, "OUTGOING", told)
    chosen = {ports.choose() for _ in range(50)}
    assert len(chosen) > 1
    assert all(ports.LOWEST <= port < 21_000 for port in chosen)


def test_a_preferred_one_is_kept_while_it_is_free() -> None:
    free = ports.choose()
    assert ports.choose(free) == free
    with socket.create_server((ports.LOOPBACK, free)):
        assert ports.choose(free) != free


@pytest.mark.parametrize("said", ["1024\t65535\n", "", "nonsense", None])
def test_where_no_port_is_left_or_nothing_is_said_the_system_picks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str | None
) -> None:
    told = tmp_path / "range"
    if said is not None:
        told.write_text(said)
    monkeypatch.setattr(ports, "OUTGOING", told)
    assert ports.is_free(ports.choose())
