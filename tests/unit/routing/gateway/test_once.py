import os
import zlib

import pytest

from routing.contracts.enums import RequestStatus, SettleKind
from routing.decision.types import Refusal
from routing.gateway.once import (
    RAW_MAX_BYTES,
    RECORDED_MAX_BYTES,
    Answer,
    Kept,
    Recording,
    Vault,
    is_remembered,
)
from routing.store.once import ANSWER_MAX_BYTES, read_once

CALL = ("acme", "k-1", b"order-1", b"/v1/chat/completions", b'{"model":"m"}')


def text(vault: Vault, *call: object) -> str:
    once = vault.once(*call)  # type: ignore[arg-type]
    assert isinstance(once, str)
    return once


@pytest.mark.parametrize("header", [b"", b"a b", b"x" * 256, b"a\tb", "é".encode(), b"a\x7f"])
def test_a_header_that_is_no_key_is_refused_by_name(header: bytes) -> None:
    refusal = Vault(b"s").once("acme", "k-1", header, b"/", b"{}")
    assert isinstance(refusal, Refusal)
    assert refusal.param == "Idempotency-Key"


def test_name_and_print_follow_exactly_what_they_stand_for() -> None:
    vault = Vault(b"secret")
    base = read_once(text(vault, *CALL))
    assert read_once(text(vault, *CALL)) == base
    for place, other in enumerate(("globex", "k-2", b"order-2")):
        changed = [*CALL]
        changed[place] = other
        assert read_once(text(vault, *changed)).name != base.name
    for place, other in ((3, b"/v1/completions"), (4, b'{"model":"n"}')):
        changed = [*CALL]
        changed[place] = other
        found = read_once(text(vault, *changed))
        assert (found.name == base.name, found.print_ == base.print_) == (True, False)
    assert read_once(text(Vault(b"other"), *CALL)).name != base.name


def test_parts_of_a_name_cannot_be_shifted_into_each_other() -> None:
    vault = Vault(b"secret")
    one = vault.once("acme", "k", b"1order", b"/", b"")
    two = vault.once("acme", "k1", b"order", b"/", b"")
    assert one != two


def test_a_seal_opens_only_for_its_tenant_call_and_secret() -> None:
    vault = Vault(b"secret")
    answer = Answer(False, b"x-request-id: r\r\n", zlib_of(b"body"))
    sealed = vault.seal("acme", "r", answer)
    assert b"body" not in sealed
    assert vault.open("acme", Kept("r", sealed)) == (answer, b"body")
    assert vault.open("globex", Kept("r", sealed)) is None
    assert vault.open("acme", Kept("q", sealed)) is None
    assert Vault(b"other").open("acme", Kept("r", sealed)) is None
    assert vault.open("acme", Kept("r", b"short")) is None
    assert vault.seal("acme", "r", answer) != sealed


def test_a_seal_above_its_bound_is_empty() -> None:
    assert Vault(b"s").seal("acme", "r", Answer(False, b"", bytes(ANSWER_MAX_BYTES))) == b""


def zlib_of(body: bytes) -> bytes:
    recording = Recording(Vault(b""))
    recording.feed(body)
    found = recording.close()
    assert found is not None
    return found


def test_a_recording_gives_back_what_was_fed_and_holds_nothing_afterwards() -> None:
    vault = Vault(b"s")
    recording = Recording(vault)
    for piece in (b"data: a\n\n", b"data: b\n\n"):
        recording.feed(piece)
    assert vault.recorded_bytes > 0
    whole = recording.close()
    assert whole is not None
    assert zlib.decompressobj(13).decompress(whole) == b"data: a\n\ndata: b\n\n"
    assert vault.recorded_bytes == 0
    assert recording.close() is None


@pytest.mark.parametrize("piece", [os.urandom(1 << 16), bytes(1 << 16)])
def test_a_recording_gives_up_above_either_bound(piece: bytes) -> None:
    vault = Vault(b"s")
    recording = Recording(vault)
    for _ in range(RAW_MAX_BYTES // len(piece) + 2):
        recording.feed(piece)
    assert vault.recorded_bytes == 0
    assert recording.close() is None


def test_the_process_records_no_more_than_its_bound() -> None:
    vault = Vault(b"s")
    vault.recorded_bytes = RECORDED_MAX_BYTES
    recording = Recording(vault)
    recording.feed(b"x")
    assert recording.close() is None
    assert vault.recorded_bytes == RECORDED_MAX_BYTES


def test_only_what_was_charged_is_remembered() -> None:
    remembered = {
        (kind, status)
        for kind in SettleKind
        for status in RequestStatus
        if is_remembered(kind, status)
    }
    assert remembered == {
        (SettleKind.SETTLED, status)
        for status in (RequestStatus.OK, RequestStatus.INCOMPLETE, RequestStatus.CANCELLED)
    }
