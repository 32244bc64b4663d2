import asyncio
import itertools
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command

from console.demo import traffic
from console.demo.client import Answer, GatewayAddress
from console.demo.traffic import (
    FAILED_ONE_IN,
    TASK_STEPS,
    Arrival,
    Caller,
    Replay,
    body_of,
    looped,
    prompt_of,
    read_trace,
    task_headers,
)

CALM = Caller(name="acme", secret="s", model="llama-8b")
NOISY = Caller(name="globex", secret="s", model="llama-8b", is_noisy=True)


@pytest.mark.parametrize("path", ["", "/", "/v1", "/v1/"])
def test_an_address_is_taken_as_up_prints_it(path):
    assert GatewayAddress.from_url(f"http://127.0.0.1:8100{path}") == GatewayAddress(
        "127.0.0.1", 8100
    )


@pytest.mark.parametrize("url", ["http://127.0.0.1:8100/v2", "ftp://127.0.0.1/v1", "http:///v1"])
def test_another_address_is_refused(url):
    with pytest.raises(ValueError, match="must look like http"):
        GatewayAddress.from_url(url)


def test_the_shipped_slice_is_ten_ordered_minutes_of_real_arrivals():
    rows = read_trace()
    assert len(rows) == 2911
    assert rows == sorted(rows, key=lambda row: row.t_s)
    assert rows[0].t_s >= 0 and rows[-1].t_s < 600
    assert all(row.input_tokens > 0 for row in rows)


def test_looping_keeps_the_gaps_of_the_trace_and_never_goes_back_in_time():
    rows = [Arrival(0.5, 10, 1), Arrival(2.0, 20, 2), Arrival(9.0, 30, 3)]
    times = [row.t_s for row in itertools.islice(looped(rows), 7)]
    assert times == [0.5, 2.0, 9.0, 10.5, 12.0, 19.0, 20.5]


def test_thinning_leaves_the_kept_arrivals_at_their_own_times():
    rows = [Arrival(float(t), 10, 1) for t in range(6)]
    assert [row.t_s for row in itertools.islice(looped(rows, 3), 4)] == [0.0, 3.0, 6.0, 9.0]


def test_prompts_are_repeatable_and_share_a_beginning_within_a_session():
    assert prompt_of(100, seed=3) == prompt_of(100, seed=3)
    assert prompt_of(200, seed=3).startswith(prompt_of(100, seed=3))
    assert len(prompt_of(100, seed=3)) == 400
    assert prompt_of(100, seed=4) != prompt_of(100, seed=3)


def test_the_noisy_caller_multiplies_its_prompts_in_every_second_phase_only():
    def user_bytes(caller, t_s):
        messages = body_of(caller, Arrival(t_s, 1000, 50), index=0)["messages"]
        return len(messages[1]["content"])

    assert user_bytes(NOISY, 10.0) == user_bytes(CALM, 10.0) == user_bytes(CALM, 130.0)
    assert user_bytes(NOISY, 130.0) > 5 * user_bytes(CALM, 130.0)


@pytest.fixture
def sent(monkeypatch):
    """Replaces the network by a recorder of send times on the loop's own clock."""
    times = []

    async def fake(gateway, secret, body, headers):
        times.append(asyncio.get_running_loop().time())
        return Answer(status=200)

    monkeypatch.setattr(traffic, "stream_chat", fake)
    return times


def test_arrivals_leave_at_their_own_times_and_stop_ends_the_replay(sent):
    rows = [Arrival(0.0, 8, 1), Arrival(0.05, 8, 1), Arrival(0.1, 8, 1), Arrival(3600.0, 8, 1)]

    async def run():
        stop = asyncio.Event()
        seen = []
        start_s = asyncio.get_running_loop().time()
        replay = Replay(GatewayAddress("127.0.0.1", 1), [CALM], seen.append)
        task = asyncio.create_task(replay.run(iter(rows), stop))
        while len(seen) < 3:
            await asyncio.sleep(0.005)
        stop.set()
        await task
        return start_s, seen

    start_s, seen = asyncio.run(run())
    assert [outcome.status for outcome in seen] == [200, 200, 200]
    # None early; on a busy machine some are late, so that two may leave together.
    for row, at_s in zip(rows, sent, strict=False):
        assert at_s - start_s >= row.t_s
    assert len(sent) == 3


def test_a_full_house_drops_arrivals_instead_of_queueing_them(monkeypatch):
    release = asyncio.Event()

    async def stuck(gateway, secret, body, headers):
        await release.wait()
        return Answer(status=200)

    monkeypatch.setattr(traffic, "stream_chat", stuck)
    monkeypatch.setattr(traffic, "MAX_IN_FLIGHT", 2)

    async def run():
        replay = Replay(GatewayAddress("127.0.0.1", 1), [CALM])
        task = asyncio.create_task(replay.run([Arrival(0.0, 8, 1)] * 5, asyncio.Event()))
        while replay.dropped < 3:
            await asyncio.sleep(0.005)
        release.set()
        await task
        return replay.sent, replay.dropped

    assert asyncio.run(run()) == (2, 3)


def test_calls_form_tasks_that_report_their_end_once():
    calls = [task_headers("acme-1", call) for call in range(TASK_STEPS * FAILED_ONE_IN)]
    by_task: dict[str, list[dict[str, str]]] = {}
    for headers in calls:
        by_task.setdefault(headers["x-headrace-task-id"], []).append(headers)
    assert len(by_task) == FAILED_ONE_IN
    ends = []
    for steps in by_task.values():
        assert [one["x-headrace-step"] for one in steps] == ["1/4", "2/4", "3/4", "4/4"]
        ends += [one["x-headrace-task-outcome"] for one in steps if len(one) == 4]
    assert ends.count("failure") == 1
    assert len(ends) == FAILED_ONE_IN


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("t_s,input_tokens\n0,1\n", 2),
        ("t_s,input_tokens,output_tokens\n0,1,2\nx,1,2\n", 3),
        ("t_s,input_tokens,output_tokens\ninf,1,2\n", 2),
        ("t_s,input_tokens,output_tokens\n0,-1,2\n", 2),
    ],
)
def test_a_trace_that_cannot_be_read_names_the_line(tmp_path: Path, text: str, line: int) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(text)
    with pytest.raises(ValueError, match=f"line {line} "):
        read_trace(path)
    with pytest.raises(CommandError, match=rf"trace\.csv: line {line} "):
        call_command("replay", str(path), "--key", "hr_x")


def test_a_trace_that_is_not_there_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match=r"nope\.csv cannot be opened: No such file"):
        call_command("replay", str(tmp_path / "nope.csv"), "--key", "hr_x")
