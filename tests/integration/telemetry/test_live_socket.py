"""The live socket of a real console process."""

import time

import pytest

from routing.contracts.endpoint_state import EndpointState
from routing.contracts.enums import ReplicaHealth
from routing.contracts.process import decode_process_status
from routing.store import keys
from tests.collecting import ConsoleProcess, FakeCollector, traffic
from tests.stack import wait_until
from tests.viewing import Viewer

pytest_plugins = ("tests.live_fixtures",)


@pytest.fixture
def console(own_console: ConsoleProcess) -> ConsoleProcess:
    """When a view may show rows in a new order depends on when it last did."""
    return own_console


def replica(name: str, usage: float | None, at_ms: int) -> EndpointState:
    return EndpointState(name, "p1", at_ms, ReplicaHealth.OK, kv_usage_ratio=usage, running=1)


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def test_an_operator_gets_a_snap_then_ticks_of_changed_rows_only(
    console: ConsoleProcess, collector: FakeCollector, person, tenants
) -> None:
    _, cookie = person("ops", "operator")
    acme, globex = (str(tenants[slug].pk) for slug in ("acme", "globex"))
    quiet = traffic(globex, (0.2,))
    collector.publish([traffic(acme, (0.1,), spend_nanousd=1_500_000_000), quiet])
    viewer = Viewer(console, cookie)
    viewer.subscribe(1, "slices", "limit=50")
    snap = viewer.until("snap")
    assert (snap["epoch"], snap["seq"]) == (collector.epoch, collector.seq)
    assert snap["window_s"] == 60
    assert viewer.column(1, "tenant") == ["acme", "globex"]
    assert viewer.column(1, "spend_usd") == ["1.50", "0.00"]
    assert viewer.column(1, "ttft_p95_ms")[0] == pytest.approx(100, rel=0.011)
    assert viewer.column(1, "ttft_p99_ms") == [None, None]

    collector.publish([traffic(acme, (0.1, 0.1)), quiet])
    tick = viewer.until("tick")
    assert [row[0] for row in tick["d"]] == [0]
    assert tick["seq"] == collector.seq
    assert viewer.column(1, "ttft_count") == [2, 1]


def test_groups_merge_and_replicas_age(
    console: ConsoleProcess, collector: FakeCollector, person, tenants
) -> None:
    _, cookie = person("ops", "auditor")
    acme, globex = (str(tenants[slug].pk) for slug in ("acme", "globex"))
    deltas = [traffic(acme, (0.1,) * 90), traffic(globex, (2.0,) * 10, pool="p2")]
    at = now_ms()
    collector.publish(deltas, [replica("r1", 0.5, at), replica("r2", 0.25, at - 14_000)], at)
    viewer = Viewer(console, cookie)
    viewer.subscribe(1, "slices", "group=total")
    viewer.subscribe(2, "slices", "group=tenant")
    viewer.subscribe(3, "pool")
    snaps = {frame["id"]: frame for frame in (viewer.until("snap") for _ in range(3))}
    assert viewer.column(1, "ttft_p95_ms")[0] == pytest.approx(2000, rel=0.011)
    assert viewer.column(2, "tenant") == ["acme", "globex"]
    assert len(viewer.column(2, "spend_minutes_nanousd")[0]) == 15
    assert viewer.column(3, "kv_usage_ratio") == [0.5, 0.25]
    assert snaps[3]["age"] == [[1, 14]]


def test_new_rows_come_as_a_snap_but_not_at_once(
    console: ConsoleProcess, collector: FakeCollector, person, tenants
) -> None:
    _, cookie = person("ops", "operator")
    acme, globex = (str(tenants[slug].pk) for slug in ("acme", "globex"))
    collector.publish([traffic(globex, (0.1,))])
    viewer = Viewer(console, cookie)
    viewer.subscribe(1, "slices")
    viewer.until("snap")
    began = time.monotonic()
    collector.publish([traffic(acme, (0.1,)), traffic(globex, (0.1, 0.1))])
    tick = viewer.until("tick")
    assert tick["d"][0][0] == 0
    assert viewer.column(1, "ttft_count") == [2]
    while viewer.frames[-1]["t"] != "snap":
        assert time.monotonic() - began < 15
        collector.publish([traffic(acme, (0.1,)), traffic(globex, (0.1, 0.1))])
        frame = viewer.next()
        while frame and frame["t"] == "beat":
            frame = viewer.next()
    assert viewer.column(1, "tenant") == ["acme", "globex"]
    assert time.monotonic() - began >= 4


def test_a_viewer_resumes_with_a_tick_when_its_copy_is_recent(
    console: ConsoleProcess, collector: FakeCollector, person, tenants
) -> None:
    _, cookie = person("ops", "operator")
    acme = str(tenants["acme"].pk)
    collector.publish([traffic(acme, (0.1,))])
    staying, leaving = Viewer(console, cookie), Viewer(console, cookie)
    staying.subscribe(1, "slices")
    staying.until("snap")
    leaving.subscribe(1, "slices")
    snap = leaving.until("snap")
    leaving.close()
    collector.publish([traffic(acme, (0.1, 0.1))])
    staying.until("tick")
    back = Viewer(console, cookie)
    back.rows, back.fields = leaving.rows, leaving.fields
    back.subscribe(1, "slices", since=[snap["epoch"], snap["seq"], snap["order"]])
    assert back.until("tick")["seq"] == collector.seq
    assert back.column(1, "ttft_count") == [2]
    stranger = Viewer(console, cookie)
    stranger.subscribe(1, "slices", since=["other", 1, "0"])
    assert stranger.until("snap")["seq"] == collector.seq


def test_a_paused_viewer_gets_beats_only_and_the_newest_state_on_resume(
    console: ConsoleProcess, collector: FakeCollector, person, tenants
) -> None:
    _, cookie = person("ops", "operator")
    acme = str(tenants["acme"].pk)
    collector.publish([traffic(acme, (0.1,))])
    viewer = Viewer(console, cookie)
    viewer.subscribe(1, "slices")
    viewer.until("snap")
    viewer.send(t="pause")
    viewer.send(t="sub", id=9, ch="nothing")  # answered after the pause was taken
    viewer.until("error")
    for _ in range(3):
        collector.publish([traffic(acme, (0.1,) * 3)])
    assert viewer.until("beat")["ts"] == pytest.approx(time.time(), abs=2)
    assert [frame["t"] for frame in viewer.frames].count("tick") == 0
    viewer.send(t="resume")
    assert viewer.until("tick")["seq"] == collector.seq


def test_questions_that_cannot_be_answered_get_an_error_and_many_end_the_socket(
    console: ConsoleProcess, person
) -> None:
    _, cookie = person("ops", "operator")
    viewer = Viewer(console, cookie)
    viewer.socket.send("not json")
    assert viewer.until("error")["code"] == "bad_message"
    viewer.subscribe(1, "nothing")
    assert viewer.until("error")["code"] == "bad_query"
    viewer.subscribe(2, "slices", "color=red")
    assert viewer.until("error") == {"t": "error", "id": 2, "code": "bad_query"}
    for number in range(8):
        viewer.subscribe(10 + number, "slices")
    viewer.subscribe(99, "slices")
    assert viewer.until("error") == {"t": "error", "id": 99, "code": "too_many"}
    for _ in range(4):
        viewer.socket.send("[]")
    assert viewer.until_closed() == 4400


def test_a_seventh_socket_of_a_person_is_closed_and_room_comes_back(
    console: ConsoleProcess, person
) -> None:
    _, cookie = person("ops", "operator")
    viewers = [Viewer(console, cookie) for _ in range(6)]
    for viewer in viewers:
        viewer.until("beat")
    assert Viewer(console, cookie).until_closed() == 4429
    viewers[0].close()
    wait_until(lambda: (v := Viewer(console, cookie)).next() is not None and v, 10, "room again")


def test_without_session_or_with_a_wrong_version_the_code_says_why(
    console: ConsoleProcess, person
) -> None:
    assert Viewer(console, "").until_closed() == 4401
    assert Viewer(console, "headrace_session=made-up").until_closed() == 4401
    _, cookie = person("nobody")
    assert Viewer(console, cookie).until_closed() == 4403
    _, ops = person("ops", "operator")
    assert Viewer(console, ops, version="2").until_closed() == 4400


def test_the_console_tells_the_store_that_it_lives(console: ConsoleProcess, live_store) -> None:
    def names() -> set[str]:
        return {
            decode_process_status(raw).name for raw in live_store.hgetall(keys.PROCESSES).values()
        }

    wait_until(lambda: names() == {"console"}, 10, "heartbeat")
