"""Bounded pools: one process may exhaust its own, none can take another's."""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import redis
from django.db import OperationalError, connection, connections

from console.project.database import POOL_MAX
from console.supervisor import plan
from console.supervisor.embedded import MAX_CONNECTIONS
from tests.ledgering import (
    ScriptedGateway,
    assert_exact,
    is_open,
    make_party,
    row_count,
    rows,
    running_writer,
    until,
)

pytestmark = pytest.mark.django_db(transaction=True)


@contextmanager
def exhausted_pool() -> Iterator[None]:
    """Every connection of this process's pool is inside a slow page's transaction."""
    release, taken = threading.Event(), threading.Barrier(POOL_MAX)
    # this thread's own connection is one of them
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1")

    def hold() -> None:
        try:
            with connections["default"].cursor() as cursor:
                cursor.execute("SELECT 1")
                taken.wait(timeout=20)
                release.wait(timeout=60)
        finally:
            connections["default"].close()

    threads = [threading.Thread(target=hold, daemon=True) for _ in range(POOL_MAX - 1)]
    for thread in threads:
        thread.start()
    try:
        taken.wait(timeout=20)
        yield
    finally:
        release.set()
        for thread in threads:
            thread.join(timeout=20)


def test_ledger_goes_on_while_the_consoles_pool_is_exhausted(store: redis.Redis) -> None:
    party, gateway = make_party(), ScriptedGateway(store)
    with running_writer():
        until(lambda: is_open(store, party), what="open")
        with exhausted_pool():
            refused: list[Exception] = []

            def one_more() -> None:
                try:
                    connections["default"].ensure_connection()
                except OperationalError as error:
                    refused.append(error)
                finally:
                    connections["default"].close()

            page = threading.Thread(target=one_more)
            page.start()
            gateway.serve(party)
            until(lambda: row_count() == 1, what="row")
            page.join(timeout=30)
            assert len(refused) == 1, "the pool was not exhausted"
    assert_exact(gateway, party)


def test_pools_sum_below_the_servers_limit() -> None:
    reserved = int(rows("SHOW superuser_reserved_connections")[0][0])
    assert sum(plan.POOL_MAX.values()) < MAX_CONNECTIONS - reserved
    assert plan.pools_within(MAX_CONNECTIONS, is_demo=True) == plan.POOL_MAX
    with pytest.raises(Exception, match="raise max_connections"):
        plan.pools_within(sum(plan.POOL_MAX.values()) // 2, is_demo=True)


def test_statements_locks_and_idle_transactions_have_limits() -> None:
    for name in ("statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout"):
        assert rows(f"SHOW {name}")[0][0] not in ("0", ""), name
    with running_writer():
        until(lambda: _ledger_backends() == 1, what="the writer's one connection")


def _ledger_backends() -> int:
    return int(
        rows(
            "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'headrace-ledger'"
            " AND datname = current_database()"
        )[0][0]
    )


def test_this_process_may_hold_as_many_as_its_environment_says() -> None:
    assert int(os.environ.get("HEADRACE_DB_POOL_MAX", "4")) == POOL_MAX
