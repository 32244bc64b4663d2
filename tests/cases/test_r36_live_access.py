"""R36: live-view sockets obey the same access rules as pages, all the time."""

import time

import pytest
from django.contrib.sessions.models import Session
from websockets.exceptions import InvalidStatus

from console.models import AuditEvent
from tests.collecting import ConsoleProcess, FakeCollector, traffic
from tests.viewing import Viewer

pytest_plugins = ("tests.live_fixtures",)
CLOSED_WITHIN_S = 6.0  # 5 s, and the time to publish and read


@pytest.fixture
def published(collector: FakeCollector, tenants) -> FakeCollector:
    """Traffic of both tenants."""
    collector.publish([traffic(str(tenant.pk), (0.1,)) for tenant in tenants.values()])
    return collector


def test_r36_a_foreign_or_missing_origin_is_refused(console: ConsoleProcess, person) -> None:
    _, cookie = person("ops", "operator")
    host = f"127.0.0.1:{console.port}"
    wrong = (
        "https://evil.example",
        f"http://127.0.0.1:{console.port + 1}",
        f"https://{host}",
        f"http://localhost:{console.port}",
        f"http://{host}.evil.example",
        f"http://evil@{host}",
        "null",
        None,
    )
    for origin in wrong:
        with pytest.raises(InvalidStatus) as refused:
            Viewer(console, cookie, origin=origin)
        assert refused.value.response.status_code == 403, origin
    assert Viewer(console, cookie).until("beat")


def test_r36_a_removed_member_gets_nothing_more_and_is_closed(
    console: ConsoleProcess, published: FakeCollector, person, tenants
) -> None:
    user, cookie = person("amy", member_of=(tenants["acme"], tenants["globex"]))
    viewer = Viewer(console, cookie)
    viewer.subscribe(1, "slices")
    viewer.until("snap")
    assert viewer.column(1, "tenant") == ["acme", "globex"]
    user.memberships.filter(tenant=tenants["acme"]).delete()
    assert closed_within(viewer, published, tenants) == 4403


@pytest.mark.parametrize("act", ["logout", "suspend"])
def test_r36_logout_and_suspension_close_the_socket(
    console: ConsoleProcess, published: FakeCollector, person, tenants, act: str
) -> None:
    user, cookie = person("ops", "operator")
    viewer = Viewer(console, cookie)
    viewer.subscribe(1, "slices")
    viewer.until("snap")
    if act == "logout":
        Session.objects.filter(session_key=cookie.partition("=")[2]).delete()
    else:
        user.is_active = False
        user.save(update_fields=["is_active"])
    assert closed_within(viewer, published, tenants) == 4401


def test_r36_a_demoted_operator_loses_the_pools(
    console: ConsoleProcess, published: FakeCollector, person, tenants
) -> None:
    user, cookie = person("ops", "operator", member_of=(tenants["acme"],))
    viewer = Viewer(console, cookie)
    viewer.subscribe(1, "pool")
    viewer.until("snap")
    user.role = "none"
    user.save(update_fields=["role"])
    assert closed_within(viewer, published, tenants) == 4403


@pytest.mark.parametrize(
    ("channel", "query"),
    [("slices", "tenant=globex"), ("slices", "group=total"), ("pool", ""), ("slices", "pool=p1")],
)
def test_r36_a_member_gets_no_other_tenant_no_total_and_no_pool_and_the_attempt_is_audited(
    console: ConsoleProcess, published: FakeCollector, person, tenants, channel: str, query: str
) -> None:
    user, cookie = person("amy", member_of=(tenants["acme"],))
    viewer = Viewer(console, cookie)
    viewer.subscribe(1, channel, query)
    assert viewer.until("error") == {"t": "error", "id": 1, "code": "forbidden"}
    event = AuditEvent.objects.get(act="live.denied")
    assert (event.actor_id, event.object_id, event.after) == (user.pk, channel, {"query": query})
    viewer.subscribe(2, "slices")
    viewer.subscribe(3, "slices", "group=tenant")
    for _ in range(2):
        viewer.until("snap")
    assert viewer.column(2, "tenant") == viewer.column(3, "tenant") == ["acme"]
    assert viewer.column(2, "pool") == [""]
    for _ in range(7):
        viewer.subscribe(1, channel, query)
    assert viewer.until_closed() == 4403


def closed_within(viewer: Viewer, collector: FakeCollector, tenants) -> int:
    """The close code; checks that it came in time and that no frame came after it could not."""
    began, last_data_s = time.monotonic(), 0.0
    while viewer.close_code is None:
        assert time.monotonic() - began < CLOSED_WITHIN_S
        collector.publish([traffic(str(t.pk), (0.1, 0.2)) for t in tenants.values()])
        try:
            frame = viewer.next(timeout_s=0.5)
        except TimeoutError:
            continue
        if frame and frame["t"] in ("snap", "tick"):
            last_data_s = time.monotonic() - began
    assert last_data_s < 5.0
    return viewer.close_code
