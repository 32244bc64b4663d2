"""The usage journal: what was written survives, a torn end is cut, a bad disk delays nobody."""

import asyncio
import errno
import os
import threading
from pathlib import Path

import pytest

from routing.gateway import journal as journal_module
from routing.gateway.journal import Journal
from routing.gateway.journal_file import END, OPEN, PROGRESS, file_head, frame, gather, read_file
from routing.gateway.journal_start import JournalLockedError
from routing.gateway.write_gate import WriteGate

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, bool]]:
    return "asyncio", {"use_uvloop": True}


def opened(directory: Path, name: str = "g0") -> tuple[Journal, dict]:
    journal = Journal(directory / name, gateway_id=name, incarnation="i")
    return journal, {item.request_id: item for item in journal.open()}


def open_record(request_id: str, bucket: int = 7) -> tuple[object, ...]:
    return (request_id, bucket, 3, b"info", b"legs")


def end_record(request_id: str) -> tuple[object, ...]:
    return (request_id, "s", {"usd": 5}, b"{}", b"legs")


async def written(journal: Journal, sequence: int | None) -> None:
    assert sequence is not None
    async with asyncio.timeout(5):
        while journal.written < sequence:
            await asyncio.sleep(0.005)


async def test_records_come_back_after_a_crash(tmp_path: Path):
    journal, left = opened(tmp_path)
    assert left == {}
    journal.append(OPEN, open_record("a"))
    journal.claim()
    journal.append(PROGRESS, ("a", 40))
    journal.append(OPEN, open_record("b"))
    journal.claim()
    await written(journal, journal.append(END, end_record("b")))
    journal.close()
    again, left = opened(tmp_path)
    again.close()
    assert set(left) == {"a", "b"}
    assert (left["a"].out_so_far, left["a"].kind, left["a"].res_epoch) == (40, "", 3)
    assert (left["b"].kind, left["b"].charge, left["b"].event) == ("s", {"usd": 5}, b"{}")


def test_file_cut_at_each_byte_of_its_last_record_loses_only_that_record():
    head = file_head("g0", "i", 1)
    first, last = frame(OPEN, open_record("a")), frame(END, end_record("a"))
    whole = head + first + last
    for size in range(len(head) + len(first), len(whole) + 1):
        contents = read_file(whole[:size])
        is_whole = size == len(whole)
        assert [kind for kind, _ in contents.records] == ([OPEN, END] if is_whole else [OPEN])
        assert contents.good_bytes == (len(whole) if is_whole else len(head) + len(first))
        assert contents.is_cut == (size not in (len(whole), len(head) + len(first)))


def test_any_changed_byte_of_the_last_record_is_noticed():
    whole = file_head("g0", "i", 1) + frame(OPEN, open_record("a"))
    last = frame(END, end_record("a"))
    for at in range(len(last)):
        damaged = bytearray(last)
        damaged[at] ^= 0x41
        contents = read_file(whole + bytes(damaged))
        assert [kind for kind, _ in contents.records] == [OPEN], f"byte {at}"
        assert contents.is_cut


async def test_torn_last_file_is_cut_and_appending_goes_on(tmp_path: Path):
    journal, _ = opened(tmp_path)
    await written(journal, journal.append(OPEN, open_record("a")))
    journal.claim()
    journal.close()
    path = tmp_path / "g0" / "1.hrj"
    good = path.stat().st_size
    path.write_bytes(path.read_bytes() + frame(OPEN, open_record("b"))[:-3])
    again, left = opened(tmp_path)
    assert set(left) == {"a"}
    assert path.stat().st_size == good
    assert not again.is_damaged
    await written(again, again.append(OPEN, open_record("c")))
    again.claim()
    again.close()
    third, left = opened(tmp_path)
    third.close()
    assert set(left) == {"a", "c"}


async def test_damage_before_the_last_file_is_reported_and_later_files_are_read(tmp_path: Path):
    for name in ("a", "b"):
        journal, _ = opened(tmp_path)
        await written(journal, journal.append(OPEN, open_record(name)))
        journal.claim()
        journal.close()
    path = tmp_path / "g0" / "1.hrj"
    path.write_bytes(path.read_bytes()[:-2])
    again, left = opened(tmp_path)
    again.close()
    assert set(left) == {"b"}
    assert again.is_damaged


async def test_second_owner_of_a_directory_is_refused(tmp_path: Path):
    journal, _ = opened(tmp_path)
    other = Journal(tmp_path / "g0", gateway_id="g0", incarnation="j")
    with pytest.raises(JournalLockedError):
        other.open(lock_wait_s=0.1)
    journal.close()
    other.open(lock_wait_s=0.1)
    other.close()


async def test_living_sibling_is_left_alone(tmp_path: Path):
    living, _ = opened(tmp_path, "g1")
    await written(living, living.append(OPEN, open_record("a")))
    living.claim()
    journal, left = opened(tmp_path, "g0")
    assert left == {}
    journal.close()
    living.close()


async def test_files_turn_and_go_oldest_first_when_all_their_ids_are_acknowledged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(journal_module, "FILE_MAX_BYTES", 10)
    journal, _ = opened(tmp_path)
    claims = []
    for name in "abc":
        sequence = journal.append(OPEN, open_record(name))
        claims.append(journal.claim())
        await written(journal, sequence)
    assert claims == [1, 2, 3]
    files = lambda: sorted(int(p.stem) for p in (tmp_path / "g0").glob("*.hrj"))  # noqa: E731
    journal.release(2)
    assert files() == [1, 2, 3]
    journal.release(1)
    assert files() == [3]
    journal.close()
    again, left = opened(tmp_path)
    again.close()
    assert set(left) == {"c"}


async def test_full_disk_delays_the_record_not_the_request_and_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    journal, _ = opened(tmp_path)
    gate = WriteGate(journal)
    real, space = os.write, 20

    def write(fd: int, raw: bytes) -> int:
        nonlocal space
        if fd != journal._fd:
            return real(fd, raw)
        if space == 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        count = real(fd, bytes(raw)[:space])
        space -= count
        return count

    monkeypatch.setattr(os, "write", write)
    passed: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
    sequence = journal.append(OPEN, open_record("a"))
    journal.claim()
    gate.wait(sequence, passed.set_result)
    assert not await asyncio.wait_for(passed, 2)
    async with asyncio.timeout(5):  # the gate's timer may be a millisecond early
        while not journal.is_behind:
            await asyncio.sleep(0.005)
        while not gate.is_stuck:
            await asyncio.sleep(0.05)
    assert journal.trouble == "the usage journal cannot be written: No space left on device"
    space = 10**9
    await written(journal, sequence)
    assert not journal.is_behind
    assert not gate.is_stuck
    assert journal.trouble == ""
    journal.close()
    again, left = opened(tmp_path)
    again.close()
    assert set(left) == {"a"}, "a short write was continued, not repeated"


async def test_slow_disk_is_left_to_a_thread_and_the_loop_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    journal, _ = opened(tmp_path)
    real, writers = os.write, []

    def write(fd: int, raw: bytes) -> int:
        if fd == journal._fd:
            writers.append(threading.current_thread().name)
            threading.Event().wait(2 * journal_module.SLOW_WRITE_S)
        return real(fd, raw)

    monkeypatch.setattr(os, "write", write)
    for name in "abc":
        sequence = journal.append(OPEN, open_record(name))
        journal.claim()
        await written(journal, sequence)
    assert writers == ["MainThread", "journal-_write_loop", "journal-_write_loop"]
    journal.close()
    again, left = opened(tmp_path)
    again.close()
    assert set(left) == {"a", "b", "c"}


async def test_records_gather_while_the_writer_is_busy_and_the_loop_takes_over_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    journal, _ = opened(tmp_path)
    real, release, writers = os.write, threading.Event(), []

    def write(fd: int, raw: bytes) -> int:
        if fd == journal._fd:
            writers.append(threading.current_thread().name)
            if len(writers) == 1:
                threading.Event().wait(2 * journal_module.SLOW_WRITE_S)
            elif len(writers) == 2:
                release.wait(10)
        return real(fd, raw)

    monkeypatch.setattr(os, "write", write)
    await written(journal, journal.append(OPEN, open_record("slow")))
    journal.claim()
    for name in "abcd":
        sequence = journal.append(OPEN, open_record(name))
        journal.claim()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    assert journal.written == 1
    release.set()
    await written(journal, sequence)
    assert writers == ["MainThread", "journal-_write_loop", "journal-_write_loop"]
    journal._trusted_from_s = 0.0
    await written(journal, journal.append(OPEN, open_record("e")))
    journal.claim()
    assert writers[3:] == ["MainThread"]
    journal.close()
    again, left = opened(tmp_path)
    again.close()
    assert set(left) == {"slow", *"abcde"}


async def test_record_made_when_a_write_is_told_is_claimed_for_the_file_it_lies_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(journal_module, "FILE_MAX_BYTES", 10)
    journal, _ = opened(tmp_path)
    claims: list[int] = []

    def on_written() -> None:
        if len(claims) == 1:
            journal.append(OPEN, open_record("b"))
            claims.append(journal.claim())

    journal.on_written = on_written
    journal.append(OPEN, open_record("a"))
    claims.append(journal.claim())
    await written(journal, 2)
    assert claims == [1, 2]
    journal.close()


async def test_full_disk_at_a_new_file_is_waited_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(journal_module, "FILE_MAX_BYTES", 10)
    journal, _ = opened(tmp_path)
    second = tmp_path / "g0" / "2.hrj"
    second.symlink_to("/dev/full")
    await written(journal, journal.append(OPEN, open_record("a")))
    sequence = journal.append(OPEN, open_record("b"))
    async with asyncio.timeout(5):
        while not journal.is_behind:
            await asyncio.sleep(0.01)
    second.unlink()
    await written(journal, sequence)
    journal.close()


async def test_hung_disk_bounds_the_queue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(journal_module, "MAX_UNWRITTEN_BYTES", 500)
    journal, _ = opened(tmp_path)
    real, release = os.write, threading.Event()

    def write(fd: int, raw: bytes) -> int:
        if threading.current_thread().name == "journal-_write_loop":
            release.wait(10)
        return real(fd, raw)

    monkeypatch.setattr(os, "write", write)
    sequences = [journal.append(OPEN, open_record(str(n))) for n in range(50)]
    assert None in sequences
    assert journal.dropped == sequences.count(None)
    gate = WriteGate(journal)
    passed: list[bool] = []
    gate.wait(None, passed.append)
    assert passed == [False]
    release.set()
    await written(journal, max(s for s in sequences if s is not None))
    assert journal.append(OPEN, open_record("later")) is not None
    journal.close()


async def test_gate_passes_in_order_once_written(tmp_path: Path):
    journal, _ = opened(tmp_path)
    gate = WriteGate(journal)
    passed: list[int] = []
    for number in range(5):
        sequence = journal.append(OPEN, open_record(str(number)))
        gate.wait(sequence, lambda is_written, n=number: passed.append(n if is_written else -1))
    assert passed == []
    await written(journal, sequence)
    assert passed == [0, 1, 2, 3, 4]
    journal.close()


def test_progress_of_an_id_whose_open_record_is_gone_is_ignored():
    found: dict = {}
    gather([(PROGRESS, ["old", 5]), (OPEN, list(open_record("a")))], 4, found)
    assert set(found) == {"a"}
    assert found["a"].file_number == 4
