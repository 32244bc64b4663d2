"""A database that accepts and never answers holds the writer up for a bounded time only."""

import time

import psycopg
import pytest
from django.db import connection

from tenants.ledger.writer import database as writer_database
from tenants.ledger.writer.database import Database
from tests.proxying import Proxy

pytestmark = pytest.mark.django_db(transaction=True)


def test_silent_database_is_given_up_and_found_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer_database, "ANSWER_LIMIT_S", 1.0)
    with Proxy(int(connection.settings_dict["PORT"])) as proxy:
        monkeypatch.setitem(connection.settings_dict, "PORT", str(proxy.port))
        database = Database.from_settings()
        with database.transaction() as cursor:
            cursor.execute("SELECT 1")
        proxy.mode = "silent"
        for _ in range(2):  # the open connection, then a new one
            began_s = time.monotonic()
            with pytest.raises(psycopg.OperationalError), database.transaction() as cursor:
                cursor.execute("SELECT 1")
            assert time.monotonic() - began_s < 10
        proxy.mode = "pass"
        with database.transaction() as cursor:
            cursor.execute("SELECT 2")
            assert cursor.fetchone() == (2,)
        database.close()
