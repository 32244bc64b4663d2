"""A world with something on every page."""

import pytest

from tests import factories
from tests.calibrating import make_profile
from tests.forecasting import make_forecast
from tests.playbooking import make_runs
from tests.reporting import make_report


@pytest.fixture
def world(store) -> factories.World:
    made = factories.World()
    factories.make_tenant(made, "acme", "Acme Support", zone="Europe/Berlin")
    factories.make_tenant(made, "globex", "Globex Research")
    factories.make_people(made)
    factories.make_fleet(made, {"p-a": 2, "p-b": 1})
    factories.make_policy(made, versions=2)
    factories.make_rollout(made, "p-b")
    factories.make_usage(made, "acme", 3)
    factories.make_tasks(made, "acme", 2)
    factories.make_objective(made)
    factories.make_quota_request(made, "acme")
    factories.make_refusals(made, "acme", 3)
    factories.make_hook()
    factories.make_evaluations(made)
    made.draft = factories.make_draft(made)
    make_runs(made)
    factories.make_single_prices(made, "p-a", 1)
    make_forecast(made, hours=100)
    make_report()
    factories.beat(store)
    factories.scrape(store, "p-a")
    make_profile(store, "p-a")
    return made
