"""A world with something behind every endpoint."""

from datetime import timedelta

import pytest
from django.utils import timezone

from console.jobs.services import enqueue
from routing.models import Override
from tenants.directory.inviting import invite
from tests import factories
from tests.calibrating import make_profile
from tests.factories import World
from tests.forecasting import make_forecast
from tests.playbooking import make_runs
from tests.reporting import make_report


@pytest.fixture
def world(store) -> World:
    made = World()
    factories.make_tenant(made, "acme", "Acme Support", zone="Europe/Berlin")
    factories.make_tenant(made, "globex", "Globex Research")
    factories.make_people(made)
    factories.make_fleet(made, {"p-a": 2, "p-b": 1, "p-c": 1})
    factories.make_policy(made, versions=2)
    factories.make_rollout(made, "p-b")
    made.usage = factories.make_usage(made, "acme", 3)[0]
    factories.make_tasks(made, "acme", 3)
    factories.make_objective(made)
    factories.make_quota_request(made, "acme")
    factories.make_refusals(made, "acme", 3)
    factories.make_hook()
    factories.make_evaluations(made)
    made.draft = factories.make_draft(made)
    made.run = make_runs(made)
    offer = {"person": "phantom", "role": "tenant_viewer", "invited_by": None}
    made.invitation = invite(
        tenant_id=made.tenants["acme"], actor=factories.ACTOR, **offer
    ).invitation.id
    made.override = Override.objects.get().pk
    made.job = enqueue("reconcile_pools", run_after=timezone.now() + timedelta(hours=1))
    made.forecast = make_forecast(made)
    made.report = make_report()
    factories.beat(store)
    factories.scrape(store, "p-a")
    make_profile(store, "p-a")
    return made
