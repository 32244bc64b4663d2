"""A console process over the test database and a private store, with people to sign in.

Test modules ask for it with `pytest_plugins = ("tests.live_fixtures",)`.
"""

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

import pytest
import redis
from django.db import connection
from django.test import Client

from console.models import User
from tenants.models import Membership, Tenant
from tests.collecting import ConsoleProcess, FakeCollector, start_console
from tests.stack import store_server


@pytest.fixture
def database(transactional_db: None) -> None:
    """The test database, committed to for real and emptied afterwards."""


@pytest.fixture(scope="session")
def live_store_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """URL of a store that consoles of tests use, and nobody else."""
    with store_server(tmp_path_factory.mktemp("live-store")) as url:
        yield url


@pytest.fixture
def live_store(live_store_server: str) -> Iterator["redis.Redis[bytes]"]:
    """That store, emptied."""
    with closing(redis.Redis.from_url(live_store_server)) as client:
        client.flushall()
        client.url = live_store_server
        yield client


def database_url() -> str:
    """Where the test database is."""
    server = connection.settings_dict
    return (
        f"postgresql://{quote(server['USER'])}:{quote(server['PASSWORD'])}"
        f"@{server['HOST']}:{server['PORT']}/{server['NAME']}"
    )


@pytest.fixture(scope="session")
def console_server(
    live_store_server: str, django_db_setup: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ConsoleProcess]:
    """One console for all tests that do not break it: a start costs more than most of them."""
    directory = tmp_path_factory.mktemp("live-console")
    with start_console(live_store_server, database_url(), directory) as running:
        yield running


@pytest.fixture
def own_console(live_store, database, tmp_path: Path) -> Iterator[ConsoleProcess]:
    """A console of the test's own: it has no memory of what others showed in their live views."""
    with start_console(live_store.url, database_url(), tmp_path) as running:
        yield running


@pytest.fixture
def console(live_store, database, console_server: ConsoleProcess) -> ConsoleProcess:
    """That console over an empty store and an empty database."""
    return console_server


@pytest.fixture
def person(database) -> Callable[..., tuple[User, str]]:
    """Make a person with a role or memberships; the user and a session's cookie header."""

    def make(name: str, role: str = "none", *, member_of: tuple[Tenant, ...] = ()):
        user = User.objects.create(username=name, role=role)
        for tenant in member_of:
            Membership.objects.create(user=user, tenant=tenant, role="tenant_viewer")
        client = Client()
        client.force_login(user)
        return user, f"headrace_session={client.cookies['headrace_session'].value}"

    return make


@pytest.fixture
def tenants(database) -> dict[str, Tenant]:
    return {
        slug: Tenant.objects.create(slug=slug, name=slug, cache_salt=f"salt-{slug}")
        for slug in ("acme", "globex")
    }


@pytest.fixture
def collector(live_store, tenants) -> FakeCollector:
    slugs = {str(tenant.pk): slug for slug, tenant in tenants.items()}
    return FakeCollector(live_store, slugs=slugs)
