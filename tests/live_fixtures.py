"""A console process over the test database and a private store, with people to sign in.

Test modules ask for it with `pytest_plugins = ("tests.live_fixtures",)`.
"""

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import redis
from django.db.backends.postgresql.operations import DatabaseOperations
from django.test import Client

from console.models import User
from tenants.models import Membership, Tenant
from tests.collecting import ConsoleProcess, FakeCollector, start_console
from tests.stack import store_server


@pytest.fixture
def whole_flush(monkeypatch: pytest.MonkeyPatch) -> None:
    """Django's flush skips unmanaged tables, and then cannot truncate what they refer to."""
    original = DatabaseOperations.sql_flush

    def flush(self: Any, style: Any, tables: Any, **options: Any) -> Any:
        names = dict.fromkeys([*tables, "tenants_usage", "tenants_shape"])
        return original(self, style, list(names), **options)

    monkeypatch.setattr(DatabaseOperations, "sql_flush", flush)


@pytest.fixture
def database(whole_flush: None, transactional_db: None) -> None:
    """The test database, committed to for real and emptied afterwards."""


@pytest.fixture
def live_store(tmp_path: Path) -> Iterator["redis.Redis[bytes]"]:
    with store_server(tmp_path / "store") as url, closing(redis.Redis.from_url(url)) as client:
        client.url = url
        yield client


@pytest.fixture
def console(live_store, database, settings, tmp_path: Path) -> Iterator[ConsoleProcess]:
    server = settings.DATABASES["default"]
    url = (
        f"postgresql://{quote(server['USER'])}:{quote(server['PASSWORD'])}"
        f"@{server['HOST']}:{server['PORT']}/{server['NAME']}"
    )
    with start_console(live_store.url, url, tmp_path) as running:
        yield running


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
