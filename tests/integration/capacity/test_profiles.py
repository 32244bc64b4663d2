"""Pools' profiles: a wrong prior is corrected, a bad fit refused, the operator overrules both."""

import json
from datetime import timedelta

import pytest
from django.db import IntegrityError, connection, transaction
from django.utils import timezone

from capacity.fleet.services import create_domain, create_model, create_pool, create_region
from capacity.models import Pool, PoolRevision, ProfileVersion
from capacity.profiles.selectors import (
    fitted_names,
    named_profile,
    pools_with_profile,
    prior_of,
    profile_detail,
    profile_of,
)
from capacity.profiles.services import calibrate_pools, set_profile
from capacity.simulation.catalogue import named
from capacity.simulation.profiles import UnknownProfileError
from console.errors import InvalidInput, NotFound
from console.models import AuditEvent
from routing.contracts.engine_windows import WINDOWS_MAX
from tests.calibrating import SLOW, keep_windows, windows
from tests.factories import ACTOR

pytestmark = pytest.mark.django_db


@pytest.fixture
def pool() -> str:
    """A pool whose windows may begin an hour ago."""
    create_model(name="m", context_tokens=16_384, actor=ACTOR)
    create_region(slug="eu", name="Europe", actor=ACTOR)
    create_domain(region="eu", slug="a", actor=ACTOR)
    create_pool(
        name="p", model="m", driver="simulated", region="eu", domain="a",
        spec={"profile": "demo"}, actor=ACTOR,
    )  # fmt: skip
    backdate(1)
    return "p"


def backdate(number: int) -> None:
    """As if the pool ran this revision since an hour ago: rows of revisions are never edited."""
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL session_replication_role = replica")
        PoolRevision.objects.filter(number=number).update(
            created_at=timezone.now() - timedelta(hours=1)
        )
        cursor.execute("SET LOCAL session_replication_role = origin")


def calibrated() -> int:
    return calibrate_pools(is_cancelled=lambda: False)


def of(name: str) -> Pool:
    return pools_with_profile().get(name=name)


def test_a_wrong_prior_is_corrected_once_and_used(pool: str, store) -> None:
    assert profile_of(of(pool)) == prior_of(of(pool))
    assert calibrated() == 0  # nothing happened yet
    keep_windows(store, pool, windows(200), few_steps=7)
    assert calibrated() == 1
    found = profile_of(of(pool))
    assert found is not None
    assert found.name == "demo, fitted v1"
    assert found.times.t0_s == pytest.approx(SLOW.t0_s, rel=0.05)
    assert found.times.c_s == pytest.approx(SLOW.c_s, rel=0.15)
    assert found.kv_blocks == named("demo").kv_blocks
    detail = profile_detail(pool)
    assert (detail.row.windows, detail.skipped) == (200, {"few_steps": 7})
    assert detail.row.error_ratio is not None
    assert detail.row.prior_error_ratio is not None
    assert detail.row.error_ratio < 0.03
    assert detail.row.prior_error_ratio > 0.4
    t0 = detail.terms[0]
    assert (t0.unit, t0.prior, t0.refused) == ("ms", 25.0, None)
    assert t0.fitted == pytest.approx(50.0, rel=0.05)
    event = AuditEvent.objects.get(act="pool_profile.fit")
    assert (event.object_id, event.actor_label) == (pool, "system")
    assert calibrated() == 0  # nothing new
    keep_windows(store, pool, windows(50, seed=2))
    assert calibrated() == 1
    assert ProfileVersion.objects.count() == 1  # it says the same
    assert "no new one" in profile_detail(pool).row.verdict


def test_an_engine_that_became_slower_gets_a_new_version(pool: str, store) -> None:
    keep_windows(store, pool, windows(40))
    calibrated()
    # The store is full of the slower engine's: older windows no longer count.
    keep_windows(store, pool, windows(WINDOWS_MAX, SLOW.scaled(1.5), every_ms=1000))
    calibrated()
    versions = profile_detail(pool).versions
    assert [(one.number, one.windows) for one in versions] == [(2, WINDOWS_MAX), (1, 40)]
    assert versions[0].terms[0].fitted == pytest.approx(75.0, rel=0.05)
    event = AuditEvent.objects.filter(act="pool_profile.fit").latest("id")
    assert (event.before["version"], event.after["version"]) == (1, 2)


def test_a_noisy_engine_is_refused_and_says_so(pool: str, store) -> None:
    keep_windows(store, pool, windows(200, noise=0.9))
    calibrated()
    detail = profile_detail(pool)
    assert not detail.row.is_accepted
    assert "is above 15%: the prior stays." in detail.row.verdict
    assert profile_of(of(pool)) == prior_of(of(pool))
    assert detail.terms[0].refused is not None
    assert detail.terms[0].fitted is None
    assert not ProfileVersion.objects.exists()


def test_few_windows_say_how_many_are_needed(pool: str, store) -> None:
    keep_windows(store, pool, windows(5), preempted=2, restarted=1)
    calibrated()
    detail = profile_detail(pool)
    assert detail.row.verdict == "5 usable windows: 20 are needed: the prior stays."
    assert detail.skipped == {"preempted": 2, "restarted": 1}


def test_windows_and_fits_of_another_revision_do_not_count(pool: str, store) -> None:
    keep_windows(store, pool, windows(100))
    calibrated()
    row = Pool.objects.get(name=pool)
    PoolRevision.objects.create(pool=row, number=2, spec=row.spec, author="test")
    Pool.objects.filter(pk=row.pk).update(revision=2)
    assert profile_of(of(pool)) == prior_of(of(pool))
    assert profile_detail(pool).row.version is None
    assert calibrated() == 0
    assert profile_detail(pool).row.windows == 0
    # An hour of the new revision's own windows.
    backdate(2)
    keep_windows(store, pool, windows(10, seed=3))
    calibrated()
    assert profile_detail(pool).row.version == 2
    assert [one.revision for one in profile_detail(pool).versions] == [2, 1]


def test_the_operator_pins_the_prior_and_lets_go(pool: str, store) -> None:
    keep_windows(store, pool, windows(100))
    calibrated()
    assert fitted_names() == ("pool:p",)
    with pytest.raises(InvalidInput) as refused:
        set_profile(pool=pool, prior="", is_pinned=True, reason="", actor=ACTOR)
    assert refused.value.field == "reason"
    set_profile(pool=pool, prior="", is_pinned=True, reason="heat", actor=ACTOR)
    assert profile_of(of(pool)) == prior_of(of(pool)) == named_profile("pool:p")
    assert fitted_names() == ()
    assert profile_detail(pool).row.source.startswith("pinned")
    set_profile(pool=pool, prior="", is_pinned=False, reason="cooled", actor=ACTOR)
    assert named_profile("pool:p").name == "demo, fitted v1"
    events = AuditEvent.objects.filter(act="pool_profile.set").order_by("id")
    assert [event.after["is_pinned"] for event in events] == [True, False]
    assert events[0].reason == "heat"


def test_a_pool_whose_settings_name_none_gets_its_prior_from_the_operator(pool: str, store) -> None:
    Pool.objects.filter(name=pool).update(driver="static", spec={})
    assert profile_of(of(pool)) is None
    keep_windows(store, pool, windows(100))
    calibrated()
    assert "choose the prior" in profile_detail(pool).row.verdict
    with pytest.raises(InvalidInput) as refused:
        set_profile(pool=pool, prior="gpt-9/h100/tp1/bf16", is_pinned=False, reason="", actor=ACTOR)
    assert refused.value.field == "prior"
    with pytest.raises(InvalidInput):
        set_profile(pool=pool, prior="", is_pinned=True, reason="why", actor=ACTOR)
    prior = "qwen3-32b/h100/tp4/bf16"
    set_profile(pool=pool, prior=prior, is_pinned=False, reason="", actor=ACTOR)
    assert profile_detail(pool).prior_source.startswith("fitted to 30 published")
    calibrated()
    found = profile_of(of(pool))
    assert found is not None
    assert found.name == f"{prior}, fitted v1"
    with pytest.raises(NotFound):
        set_profile(pool="none", prior="", is_pinned=False, reason="", actor=ACTOR)
    with pytest.raises(UnknownProfileError, match="no such pool"):
        named_profile("pool:none")


def test_a_version_is_never_edited(pool: str, store) -> None:
    keep_windows(store, pool, windows(100))
    calibrated()
    for change in (
        lambda: ProfileVersion.objects.update(windows=1),
        lambda: ProfileVersion.objects.all().delete(),
    ):
        with pytest.raises(IntegrityError), transaction.atomic():
            change()


def test_rows_that_cannot_be_read_are_left_out(pool: str, store) -> None:
    store.rpush("hr:{pool:p}:windows", b"\x93junk", json.dumps({}).encode())
    keep_windows(store, pool, windows(30))
    assert calibrated() == 1
    assert profile_detail(pool).row.windows == 30
