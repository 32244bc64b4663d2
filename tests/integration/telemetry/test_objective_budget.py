"""What is left of an objective's budget: page and REST say what the judged minutes say."""

from datetime import timedelta

import pytest
from django.utils import timezone

from telemetry.models import ObjectiveMinute
from tests import factories
from tests.pages import client_of, plain_text

pytestmark = pytest.mark.django_db


def test_page_and_rest_say_what_is_left_and_how_long_it_lasts():
    world = factories.World()
    factories.make_tenant(world, "acme")
    factories.make_people(world)
    factories.make_objective(world, target_ratio=0.95)
    now = timezone.now().replace(second=0, microsecond=0)
    for age, total, good in (
        (timedelta(minutes=5), 1_000, 900),  # burns twice as fast as evenly
        (timedelta(days=20), 9_000, 8_900),
        (timedelta(days=31), 5_000, 0),  # of a budget before this one
    ):
        ObjectiveMinute.objects.create(
            objective_id=world.objective_id, minute_at=now - age, total=total, good=good
        )
    ana = client_of(world, "ana")
    left = 1 - 200 / (10_000 * 0.05)
    got = ana.get(f"/api/v1/objectives/{world.objective_id}/").json()
    assert got["budget_left_ratio"] == pytest.approx(left)
    words = plain_text(ana.get("/slo/").text)
    assert f"{left:.0%}".replace("%", " %") in words
    assert "9 d" in words  # 60 % of 30 days at twice the pace
