"""A running console whose PostgreSQL and store can be made to hang or to refuse.

Test modules ask for it with `pytest_plugins = ("tests.outage_fixtures",)`.
"""

from collections.abc import Iterator

import pytest
from django.test import Client

from console.accounts.services import issue_token
from tests import factories
from tests.collecting import start_console
from tests.live_fixtures import database_url
from tests.ports import BreakableConsole, through
from tests.stack import wait_until

pytest_plugins = ("tests.live_fixtures",)

TENANT_NAME = "Acme Confidential GmbH"


@pytest.fixture
def running(live_store, database, tmp_path) -> Iterator[BreakableConsole]:
    world = factories.World()
    factories.make_tenant(world, "acme", TENANT_NAME)
    factories.make_people(world)
    factories.make_fleet(world, {"p-a": 2})
    factories.make_policy(world)
    factories.make_usage(world, "acme", 5)
    factories.beat(live_store)
    client = Client()
    client.force_login(world.people["ada"])
    token = issue_token(user_id=world.people["ada"].pk, name="t", actor=factories.ACTOR).secret
    with (
        through(database_url()) as (database_port, through_url),
        through(live_store.url) as (store_port, store_url),
        start_console(store_url, through_url, tmp_path) as process,
    ):
        console = BreakableConsole(
            process, database_port, store_port, client.cookies["headrace_session"].value, token
        )
        wait_until(lambda: console.get("/readyz")[0].status_code == 200, 30, "ready")
        assert console.get("/system/")[0].status_code == 200
        yield console
